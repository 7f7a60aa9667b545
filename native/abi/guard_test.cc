// What the C ABI makes of exceptions.
#include "abi/guard.h"

#include <string>

#include "include/rabit_abi.h"
#include "testing/test.h"

namespace rabit {
namespace {

TEST(Guard, a_thread_that_the_system_refuses_is_an_error_in_words) {
  const auto refused = std::make_error_code(std::errc::resource_unavailable_try_again);

  const int32_t code = Guard([&]() -> Status { throw std::system_error(refused); });

  EXPECT_EQ(code, RABIT_RESOURCE_EXHAUSTED);
  const std::string said = rabit_last_error();
  EXPECT_TRUE(said.find("the system gives no further thread: Resource temporarily unavailable.") ==
              0);
  EXPECT_TRUE(said.find("raise the limit ('ulimit -u'") != std::string::npos);
}

}  // namespace
}  // namespace rabit
