// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace rabit {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256();
  void Update(ConstBytes bytes);
  Digest Finish();  // once; the object is then spent

 private:
  std::array<uint32_t, 8> state_;
  std::array<std::byte, 64> block_{};
  uint64_t total_bytes_ = 0;
};

Digest Sha256Of(ConstBytes bytes);

}  // namespace rabit
