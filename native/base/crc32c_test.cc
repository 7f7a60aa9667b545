#include "base/crc32c.h"

#include <random>
#include <string_view>
#include <vector>

#include "base/wire.h"
#include "testing/test.h"

namespace rabit {
namespace {

std::vector<std::byte> RandomBytes(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

TEST(Crc32c, gives_the_values_of_rfc_3720) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(AsBytes("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
}

TEST(Crc32c, implementations_agree_at_every_length_and_alignment) {
  if (!HasCrc32cInstruction()) SKIP_TEST("this processor has no CRC-32C instruction");
#if defined(__x86_64__)
  const std::vector<std::byte> data = RandomBytes(40'000, 1);

  for (size_t bytes = 0; bytes < data.size(); bytes += bytes < 900 ? 1 : 977) {
    const size_t offset = bytes % 9;
    const ConstBytes part = ConstBytes(data).subspan(offset, bytes - std::min(bytes, offset));
    ASSERT_EQ(Crc32cExtendSse42(7, part), Crc32cExtendPortable(7, part)) << bytes;
    if (!HasCrc32cFolding()) continue;
    ASSERT_EQ(Crc32cExtendAvx512(7, part), Crc32cExtendPortable(7, part)) << bytes;
  }
#endif
}

TEST(Crc32c, extending_equals_one_pass) {
  const std::vector<std::byte> data = RandomBytes(5'000, 2);

  for (size_t cut = 0; cut <= data.size(); cut += 61) {
    const ConstBytes all = data;
    ASSERT_EQ(Crc32cExtend(Crc32c(all.first(cut)), all.subspan(cut)), Crc32c(all)) << cut;
  }
}

}  // namespace
}  // namespace rabit
