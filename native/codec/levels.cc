#include "codec/levels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "codec/block_coder.h"
#include "codec/codec_kernels.h"

namespace rabit {
namespace {

enum class Norm { kMax, kL2 };

// QSGD (Alistarh et al., 2017) with uniform levels, NUQSGD (Ramezani-Kebrya et al., 2021) with
// exponential ones.  Encoding: the scale, then the codes.
class LevelsCoder final : public BlockCoder {
 public:
  LevelsCoder(std::string spec, LevelsShape shape, Norm norm, int64_t block)
      : spec_(std::move(spec)),
        shape_(shape),
        norm_(norm),
        block_(block),
        kernels_(BestCodecKernels()) {}

  std::string_view spec() const override { return spec_; }
  int64_t block() const override { return block_; }

  size_t EncodedBytesMax(int64_t count) const override {
    return sizeof(float) + static_cast<size_t>((count + 7) / 8 * shape_.bits);
  }

  size_t Encode(const float* values, int64_t count, uint64_t key, std::byte* to) const override {
    const float scale = ScaleOf(values, count);
    const size_t bytes = EncodedBytesMax(count);
    std::memcpy(to, &scale, sizeof scale);
    auto* const codes = reinterpret_cast<uint8_t*>(to) + sizeof scale;
    if (scale > 0.0f) {
      kernels_.encode_levels(values, count, shape_, scale, key, codes);
    } else {
      std::memset(codes, 0, bytes - sizeof scale);
    }
    return bytes;
  }

  Result<size_t> DecodeAdd(ConstBytes from, int64_t count, float factor, float* to) const override {
    const size_t bytes = EncodedBytesMax(count);
    RABIT_RETURN_IF_ERROR(CheckEncodedBytes(spec_, from, bytes, count));
    float scale = 0;
    std::memcpy(&scale, from.data(), sizeof scale);
    if (scale > 0.0f) {
      const auto* const codes = reinterpret_cast<const uint8_t*>(from.data()) + sizeof scale;
      kernels_.decode_levels(codes, count, shape_, scale * factor, to);
    } else if (std::isnan(scale)) {
      for (int64_t i = 0; i < count; ++i) to[i] = scale;
    }
    return bytes;
  }

 private:
  // 0: the block is sent as zeros.  NaN: it has a value that is not finite.
  float ScaleOf(const float* values, int64_t count) const {
    const uint32_t largest = kernels_.largest_bits(values, count);
    float scale = 0;
    std::memcpy(&scale, &largest, sizeof scale);
    if (norm_ == Norm::kL2 && std::isfinite(scale)) {
      scale = std::sqrt(kernels_.sum_of_squares(values, count));
    }
    if (!std::isfinite(scale)) return std::numeric_limits<float>::quiet_NaN();
    return scale < kScaleMin ? 0.0f : scale;
  }

  const std::string spec_;
  const LevelsShape shape_;
  const Norm norm_;
  const int64_t block_;
  const CodecKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<Codec>> MakeLevelsCodec(CodecSpec& spec) {
  LevelsShape shape;
  shape.bits = static_cast<int32_t>(spec.TakeInteger("bits", 4, 2, 8));
  const int64_t block = spec.TakeInteger("block", 512, 8, 65536, 8);
  shape.is_uniform = spec.TakeWord("levels", {"uniform", "exponential"}) == 0;
  const Norm norm = spec.TakeWord("norm", {"max", "l2"}) == 0 ? Norm::kMax : Norm::kL2;
  const int64_t phases = spec.TakeInteger("phases", 2, 1, 2);
  RABIT_RETURN_IF_ERROR(spec.Finish());
  auto coder = std::make_unique<LevelsCoder>(spec.canonical(), shape, norm, block);
  if (phases == 1) return MakeGatherCodec(std::move(coder));
  return MakeTwoPhaseCodec(std::move(coder));
}

}  // namespace rabit
