// What products with thin matrices refuse at the C ABI.
#include <string>

#include "include/rabit_abi.h"
#include "testing/test.h"

namespace rabit {
namespace {

TEST(ThinAbi, extents_and_pointers_that_cannot_be_are_refused) {
  float some[4] = {1, 2, 3, 4};

  EXPECT_EQ(rabit_thin_transposed_times(-1, 2, 1, some, some, some), RABIT_INVALID_ARGUMENT);
  EXPECT_TRUE(std::string(rabit_last_error()).find("-1 by 2 and rank 1") != std::string::npos);
  EXPECT_EQ(rabit_thin_transposed_times(2, 2, 0, some, some, some), RABIT_INVALID_ARGUMENT);
  EXPECT_EQ(rabit_thin_times(2, 2, 1, nullptr, nullptr, 1, some, some, some),
            RABIT_INVALID_ARGUMENT);
  EXPECT_EQ(rabit_thin_expand(2, 2, 1, some, some, some, nullptr, some), RABIT_INVALID_ARGUMENT);
  EXPECT_EQ(rabit_thin_orthonormal(1, 2, some), RABIT_INVALID_ARGUMENT);
  EXPECT_TRUE(std::string(rabit_last_error()).find("rank is 2 of 1 rows") != std::string::npos);
}

}  // namespace
}  // namespace rabit
