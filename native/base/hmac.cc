#include "base/hmac.h"

#include <algorithm>

namespace rabit {

HmacSha256::HmacSha256(ConstBytes key) {
  std::array<std::byte, 64> block{};
  if (key.size() > block.size()) {
    const Digest digest = Sha256Of(key);
    std::copy(digest.begin(), digest.end(), block.begin());
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  std::array<std::byte, 64> padded;
  std::transform(block.begin(), block.end(), padded.begin(),
                 [](std::byte b) { return b ^ std::byte{0x36}; });
  inner_.Update(padded);
  std::transform(block.begin(), block.end(), padded.begin(),
                 [](std::byte b) { return b ^ std::byte{0x5c}; });
  outer_.Update(padded);
}

Digest HmacSha256::Finish() {
  outer_.Update(inner_.Finish());
  return outer_.Finish();
}

Digest HmacSha256Of(ConstBytes key, ConstBytes message) {
  HmacSha256 hmac(key);
  hmac.Update(message);
  return hmac.Finish();
}

bool EqualInConstantTime(ConstBytes a, ConstBytes b) {
  if (a.size() != b.size()) return false;
  // volatile, so that the compiler may not leave the loop at the first difference, whose place a
  // stranger could measure.
  volatile unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = difference | std::to_integer<unsigned>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace rabit
