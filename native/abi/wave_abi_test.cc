// What arrays as waves refuse at the C ABI.
#include <string>

#include "include/rabit_abi.h"
#include "testing/test.h"

namespace rabit {
namespace {

TEST(WaveAbi, shapes_and_pointers_that_cannot_be_are_refused) {
  float some[4] = {1, 0, 0, 1};
  uint16_t places[4] = {};

  EXPECT_EQ(rabit_waves_split(1, 2, 3, some, some, some, places, some, some),
            RABIT_INVALID_ARGUMENT);
  EXPECT_TRUE(std::string(rabit_last_error()).find("3 waves of each of 1 chunks of 2 elements") !=
              std::string::npos);
  EXPECT_EQ(rabit_waves_split(1, 65537, 1, some, some, some, places, some, some),
            RABIT_INVALID_ARGUMENT);
  EXPECT_EQ(rabit_waves_split(1, 2, 1, some, some, nullptr, places, some, some),
            RABIT_INVALID_ARGUMENT);
  EXPECT_EQ(rabit_waves_mean(-1, 2, 1, 1, some, places, some, 0, some), RABIT_INVALID_ARGUMENT);
  EXPECT_EQ(rabit_waves_mean(1, 2, 1, 1, some, places, some, 0, nullptr), RABIT_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace rabit
