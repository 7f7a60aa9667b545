#include "abi/link_speed.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "testing/test.h"

namespace rabit {
namespace {

TEST(LinkSpeed, what_the_driver_says_is_bytes_per_second) {
  char folder[] = "/tmp/rabit_speed_XXXXXX";
  ASSERT_TRUE(::mkdtemp(folder) != nullptr);
  std::filesystem::create_directory(std::string(folder) + "/lo");
  const auto said = [&](const char* text) {
    std::ofstream(std::string(folder) + "/lo/speed") << text << "\n";
    return LinkSpeed("127.0.0.1", folder);
  };

  EXPECT_EQ(said("10000"), int64_t{1'250'000'000});
  EXPECT_EQ(said("-1"), 0);
  EXPECT_EQ(said(""), 0);
  std::filesystem::remove_all(folder);
}

TEST(LinkSpeed, an_address_of_no_interface_is_not_known) {
  EXPECT_EQ(LinkSpeed("192.0.2.77"), 0);
  EXPECT_EQ(LinkSpeed("127.0.0.1", "/nowhere"), 0);
}

}  // namespace
}  // namespace rabit
