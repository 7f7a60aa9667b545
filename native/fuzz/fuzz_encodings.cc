// What a summation server adds up: chunks of encodings, which say themselves what they are.
#include <algorithm>
#include <vector>

#include "codec/codec_adder.h"
#include "fuzz/round_trip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rabit;
  // A new one knows no codec: many specifications do not fill the memory.
  const auto adder = MakeCodecAdder();
  const ConstBytes bytes = fuzz::AsBytes(data, size);
  const std::byte* const inputs[] = {bytes.data(), bytes.data()};
  std::vector<std::byte> sum(bytes.begin(), bytes.end());
  (void)adder->Add(inputs, sum);
  return 0;
}
