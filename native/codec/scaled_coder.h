// ScaledCoder: blocks as a scale, which decides about the rest, and codes of a fixed size.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "codec/block_coder.h"

namespace rabit {

// A scale of 0 stands for a block of zeros, NaN for one with a value that is not finite; their
// codes are zeros, and nobody reads them.
class ScaledCoder : public BlockCoder {
 public:
  ScaledCoder(std::string spec, int64_t block) : spec_(std::move(spec)), block_(block) {}

  std::string_view spec() const final { return spec_; }
  int64_t block() const final { return block_; }

  size_t EncodedBytesMax(int64_t count) const final { return sizeof(float) + CodeBytes(count); }

  size_t Encode(const float* values, int64_t count, uint64_t key, std::byte* to) const final {
    const float norm = NormOf(values, count);
    float scale = norm < kScaleMin ? 0.0f : norm;
    if (!std::isfinite(norm)) scale = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(to, &scale, sizeof scale);
    auto* const codes = reinterpret_cast<uint8_t*>(to) + sizeof scale;
    if (scale > 0.0f) {
      EncodeCodes(values, count, scale, key, codes);
    } else {
      std::memset(codes, 0, CodeBytes(count));
    }
    return EncodedBytesMax(count);
  }

  Result<size_t> DecodeAdd(ConstBytes from, int64_t count, float factor, float* to) const final {
    const size_t bytes = EncodedBytesMax(count);
    RABIT_RETURN_IF_ERROR(CheckEncodedBytes(spec_, from, bytes, count));
    float scale = 0;
    std::memcpy(&scale, from.data(), sizeof scale);
    if (scale > 0.0f) {
      const auto* const codes = reinterpret_cast<const uint8_t*>(from.data()) + sizeof scale;
      DecodeCodes(codes, count, scale * factor, to);
    } else if (std::isnan(scale)) {
      for (int64_t i = 0; i < count; ++i) to[i] = scale;
    }
    return bytes;
  }

 private:
  virtual size_t CodeBytes(int64_t count) const = 0;
  // Not finite if one of the values is not.
  virtual float NormOf(const float* values, int64_t count) const = 0;
  virtual void EncodeCodes(const float* values, int64_t count, float scale, uint64_t key,
                           uint8_t* to) const = 0;
  // to[i] += scale * code[i].
  virtual void DecodeCodes(const uint8_t* from, int64_t count, float scale, float* to) const = 0;

  const std::string spec_;
  const int64_t block_;
};

}  // namespace rabit
