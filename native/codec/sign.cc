#include "codec/sign.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "codec/block_coder.h"
#include "codec/codec_kernels.h"

namespace rabit {
namespace {

// EF-signSGD (Karimireddy et al., 2019): biased, so it wants a residual.  The mean magnitude makes
// it a contraction for every input, which the L2 norm does not.  Encoding: the scale, then a bit
// for each element.
class SignCoder final : public BlockCoder {
 public:
  SignCoder(std::string spec, int64_t block)
      : spec_(std::move(spec)), block_(block), kernels_(BestCodecKernels()) {}

  std::string_view spec() const override { return spec_; }
  int64_t block() const override { return block_; }

  size_t EncodedBytesMax(int64_t count) const override {
    return sizeof(float) + static_cast<size_t>((count + 7) / 8);
  }

  size_t Encode(const float* values, int64_t count, uint64_t, std::byte* to) const override {
    float scale = kernels_.sum_of_magnitudes(values, count) / static_cast<float>(count);
    if (!std::isfinite(scale)) scale = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(to, &scale, sizeof scale);
    kernels_.encode_signs(values, count, reinterpret_cast<uint8_t*>(to) + sizeof scale);
    return EncodedBytesMax(count);
  }

  Result<size_t> DecodeAdd(ConstBytes from, int64_t count, float factor, float* to) const override {
    const size_t bytes = EncodedBytesMax(count);
    RABIT_RETURN_IF_ERROR(CheckEncodedBytes(spec_, from, bytes, count));
    float scale = 0;
    std::memcpy(&scale, from.data(), sizeof scale);
    const auto* const bits = reinterpret_cast<const uint8_t*>(from.data()) + sizeof scale;
    kernels_.decode_signs(bits, count, scale * factor, to);
    return bytes;
  }

 private:
  const std::string spec_;
  const int64_t block_;
  const CodecKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<Codec>> MakeSignCodec(CodecSpec& spec) {
  const int64_t block = spec.TakeInteger("block", 512, 8, 65536, 8);
  const int64_t phases = spec.TakeInteger("phases", 1, 1, 2);
  RABIT_RETURN_IF_ERROR(spec.Finish());
  auto coder = std::make_unique<SignCoder>(spec.canonical(), block);
  if (phases == 1) return MakeGatherCodec(std::move(coder));
  return MakeTwoPhaseCodec(std::move(coder), SumFeedback::kKept);
}

}  // namespace rabit
