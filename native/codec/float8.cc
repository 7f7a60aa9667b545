#include "codec/float8.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "codec/block_coder.h"
#include "codec/codec_kernels.h"

namespace rabit {
namespace {

// E4M3 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022), rounded at random, without
// bias. The largest magnitude of a block becomes 448, the largest of the format.  Encoding: the
// scale, then a byte for each element.
class Float8Coder final : public BlockCoder {
 public:
  Float8Coder(std::string spec, int64_t block)
      : spec_(std::move(spec)), block_(block), kernels_(BestCodecKernels()) {}

  std::string_view spec() const override { return spec_; }
  int64_t block() const override { return block_; }

  size_t EncodedBytesMax(int64_t count) const override {
    return sizeof(float) + static_cast<size_t>(count);
  }

  size_t Encode(const float* values, int64_t count, uint64_t key, std::byte* to) const override {
    const float scale = ScaleOf(values, count);
    std::memcpy(to, &scale, sizeof scale);
    auto* const codes = reinterpret_cast<uint8_t*>(to) + sizeof scale;
    if (scale > 0.0f) {
      kernels_.encode_float8(values, count, scale, key, codes);
    } else {
      std::memset(codes, 0, static_cast<size_t>(count));
    }
    return EncodedBytesMax(count);
  }

  Result<size_t> DecodeAdd(ConstBytes from, int64_t count, float factor, float* to) const override {
    const size_t bytes = EncodedBytesMax(count);
    RABIT_RETURN_IF_ERROR(CheckEncodedBytes(spec_, from, bytes, count));
    float scale = 0;
    std::memcpy(&scale, from.data(), sizeof scale);
    if (scale > 0.0f) {
      const auto* const codes = reinterpret_cast<const uint8_t*>(from.data()) + sizeof scale;
      kernels_.decode_float8(codes, count, scale * factor, to);
    } else if (std::isnan(scale)) {
      for (int64_t i = 0; i < count; ++i) to[i] = scale;
    }
    return bytes;
  }

 private:
  // 0: the block is sent as zeros.  NaN: it has a value that is not finite.
  float ScaleOf(const float* values, int64_t count) const {
    const uint32_t largest = kernels_.largest_bits(values, count);
    if (largest > kLargestFinite) return std::numeric_limits<float>::quiet_NaN();
    float scale = 0;
    std::memcpy(&scale, &largest, sizeof scale);
    return scale < kScaleMin ? 0.0f : scale;
  }

  const std::string spec_;
  const int64_t block_;
  const CodecKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<Codec>> MakeFloat8Codec(CodecSpec& spec) {
  const int64_t block = spec.TakeInteger("block", 512, 8, 65536, 8);
  RABIT_RETURN_IF_ERROR(spec.Finish());
  return MakeTwoPhaseCodec(std::make_unique<Float8Coder>(spec.canonical(), block));
}

}  // namespace rabit
