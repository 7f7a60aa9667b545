#include "rendezvous/listener.h"

namespace rabit {
namespace {

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

// The messages leave the text out: it is, or nearly is, a secret.
Result<Secret> Secret::FromHex(std::string_view hex) {
  Secret secret;
  if (hex.size() != 2 * secret.key.size()) {
    return InvalidArgument("the secret has " + std::to_string(hex.size()) +
                           " characters; it must be " + std::to_string(2 * secret.key.size()) +
                           " hexadecimal digits (32 bytes)");
  }
  for (size_t i = 0; i < secret.key.size(); ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return InvalidArgument(
          "the secret holds something other than hexadecimal digits near position " +
          std::to_string(2 * i));
    }
    secret.key[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return secret;
}

}  // namespace rabit
