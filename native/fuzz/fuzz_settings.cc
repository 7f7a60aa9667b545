// The text of settings that an engine is started with, and the rules for algorithms in it.
#include <string_view>

#include "abi/options.h"
#include "fuzz/round_trip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rabit;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Options> options = ParseOptions(text);
  if (options.ok()) {
    RABIT_CHECK(options->rank >= 0 && options->rank < options->size,
                "a rank outside its job was accepted");
    RABIT_CHECK(options->started_lanes() >= 1, "an engine without lanes was accepted");
  } else {
    RABIT_CHECK(!options.status().message().empty(), "settings were refused without a reason");
  }
  return 0;
}
