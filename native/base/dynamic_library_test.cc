#include "base/dynamic_library.h"

#include <cmath>
#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

TEST(DynamicLibrary, finds_a_function_in_the_first_library_that_loads) {
  const std::vector<std::string> names = {"librabit-no-such.so.9", "libm.so.6"};
  auto library = DynamicLibrary::Open(names, "");
  ASSERT_OK(library);

  double (*cosine)(double) = nullptr;
  ASSERT_OK(library->Find("cos", cosine));
  EXPECT_EQ(cosine(0.0), 1.0);
  EXPECT_EQ(library->name(), "libm.so.6");
}

TEST(DynamicLibrary, says_which_names_failed_and_how_to_get_one) {
  const std::vector<std::string> names = {"librabit-no-such.so.9"};
  const Status status = DynamicLibrary::Open(names, "install it").status();

  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("librabit-no-such.so.9: "), std::string::npos);
  EXPECT_TRUE(status.message().ends_with("install it"));
  EXPECT_FALSE(DynamicLibrary::FindLoaded(names, "").ok());
}

TEST(DynamicLibrary, a_missing_function_is_named) {
  const std::vector<std::string> names = {"libm.so.6"};
  auto library = DynamicLibrary::Open(names, "");
  ASSERT_OK(library);

  void (*function)() = nullptr;
  const Status status = library->Find("rabit_no_such", function);

  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("libm.so.6 has no function rabit_no_such"), std::string::npos);
}

}  // namespace
}  // namespace rabit
