#include "base/hmac.h"

#include <cstdio>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/wire.h"
#include "testing/test.h"

namespace rabit {
namespace {

std::string Hex(const Digest& digest) {
  std::string text;
  for (std::byte byte : digest) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", std::to_integer<unsigned>(byte));
    text += pair;
  }
  return text;
}

TEST(Sha256, gives_the_values_of_fips_180_4) {
  EXPECT_EQ(Hex(Sha256Of({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256Of(AsBytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Sha256Of(AsBytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hex(Sha256Of(AsBytes(std::string(1'000'000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, pieces_give_the_digest_of_the_whole) {
  const std::string text(1000, 'x');
  const Digest whole = Sha256Of(AsBytes(text));
  for (size_t step : {1, 7, 63, 64, 65, 500}) {
    Sha256 hash;
    for (size_t at = 0; at < text.size(); at += step) {
      hash.Update(AsBytes(std::string_view(text).substr(at, step)));
    }
    EXPECT_EQ(Hex(hash.Finish()), Hex(whole)) << step;
  }
}

TEST(Hmac, gives_the_values_of_rfc_4231) {
  EXPECT_EQ(Hex(HmacSha256Of(std::vector<std::byte>(20, std::byte{0x0b}), AsBytes("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256Of(AsBytes("Jefe"), AsBytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256Of(std::vector<std::byte>(131, std::byte{0xaa}),
                             AsBytes("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, comparison_sees_every_difference) {
  std::vector<std::byte> a(32, std::byte{9});
  EXPECT_TRUE(EqualInConstantTime(a, a));
  EXPECT_FALSE(EqualInConstantTime(a, ConstBytes(a).first(31)));
  for (size_t i = 0; i < a.size(); ++i) {
    std::vector<std::byte> b = a;
    b[i] ^= std::byte{0x80};
    EXPECT_FALSE(EqualInConstantTime(a, b)) << i;
  }
}

TEST(Random, two_draws_differ) {
  std::array<std::byte, 32> a{};
  std::array<std::byte, 32> b{};
  ASSERT_OK(FillRandom(a));
  ASSERT_OK(FillRandom(b));
  EXPECT_FALSE(a == b);
}

}  // namespace
}  // namespace rabit
