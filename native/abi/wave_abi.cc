// The C ABI of arrays as waves.
#include <string>

#include "abi/guard.h"
#include "arithmetic/waves.h"
#include "include/rabit_abi.h"

namespace rabit {
namespace {

Status CheckWaves(const WaveShape& shape) {
  constexpr int64_t kChunksMax = int64_t{1} << 40;
  if (shape.chunks >= 0 && shape.chunks <= kChunksMax && shape.chunk >= 1 && shape.chunk <= 65536 &&
      shape.kept >= 1 && shape.kept <= shape.chunk) {
    return Status();
  }
  return InvalidArgument(std::to_string(shape.kept) + " waves of each of " +
                         std::to_string(shape.chunks) + " chunks of " +
                         std::to_string(shape.chunk) +
                         " elements are none: pass chunks of 1 to 65536 and 1 to as many waves");
}

}  // namespace
}  // namespace rabit

using rabit::Guard;
using rabit::NullArgument;
using rabit::Status;
using rabit::WaveShape;

int32_t rabit_waves_split(int64_t chunks, int32_t chunk, int32_t kept, const float* basis,
                          const float* transposed, const float* x, uint16_t* places, float* values,
                          float* sent) {
  return Guard([&]() -> Status {
    const WaveShape shape{chunks, chunk, kept};
    RABIT_RETURN_IF_ERROR(rabit::CheckWaves(shape));
    RABIT_REQUIRE_POINTER(basis);
    RABIT_REQUIRE_POINTER(transposed);
    RABIT_REQUIRE_POINTER(x);
    RABIT_REQUIRE_POINTER(places);
    RABIT_REQUIRE_POINTER(values);
    RABIT_REQUIRE_POINTER(sent);
    rabit::SplitWaves(shape, basis, transposed, x, places, values, sent);
    return Status();
  });
}

int32_t rabit_waves_mean(int64_t chunks, int32_t chunk, int32_t kept, int32_t ranks,
                         const float* basis, const uint16_t* places, const float* values,
                         int32_t signs, float* mean) {
  return Guard([&]() -> Status {
    const WaveShape shape{chunks, chunk, kept};
    RABIT_RETURN_IF_ERROR(rabit::CheckWaves(shape));
    RABIT_REQUIRE_POINTER(basis);
    RABIT_REQUIRE_POINTER(places);
    RABIT_REQUIRE_POINTER(values);
    RABIT_REQUIRE_POINTER(mean);
    return rabit::MeanOfWaves(shape, ranks, basis, places, values, signs != 0, mean);
  });
}
