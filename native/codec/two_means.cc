#include "codec/two_means.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "codec/block_coder.h"
#include "codec/codec_kernels.h"

namespace rabit {
namespace {

// 1-bit SGD (Seide et al., 2014): what has no sign becomes its mean, and what has one its own, so
// that a block keeps its mean.  Biased, so it wants a residual.  Encoding: the two means, then a
// bit for each element.
class TwoMeansCoder final : public BlockCoder {
 public:
  TwoMeansCoder(std::string spec, int64_t block)
      : spec_(std::move(spec)), block_(block), kernels_(BestCodecKernels()) {}

  std::string_view spec() const override { return spec_; }
  int64_t block() const override { return block_; }

  size_t EncodedBytesMax(int64_t count) const override {
    return 2 * sizeof(float) + static_cast<size_t>((count + 7) / 8);
  }

  size_t Encode(const float* values, int64_t count, uint64_t, std::byte* to) const override {
    float means[2];
    auto* const bits = reinterpret_cast<uint8_t*>(to) + sizeof means;
    kernels_.sums_of_sides(values, count, means);
    kernels_.encode_signs(values, count, bits);
    int64_t negative = 0;
    for (int64_t i = 0; i < (count + 7) / 8; ++i) negative += std::popcount(bits[i]);
    const int64_t sizes[2] = {count - negative, negative};
    const bool is_finite = std::isfinite(means[0] - means[1]);
    for (int side = 0; side < 2; ++side) {
      if (!is_finite) means[side] = std::numeric_limits<float>::quiet_NaN();
      if (sizes[side] > 0) means[side] /= static_cast<float>(sizes[side]);
    }
    std::memcpy(to, means, sizeof means);
    return EncodedBytesMax(count);
  }

  Result<size_t> DecodeAdd(ConstBytes from, int64_t count, float factor, float* to) const override {
    const size_t bytes = EncodedBytesMax(count);
    RABIT_RETURN_IF_ERROR(CheckEncodedBytes(spec_, from, bytes, count));
    float means[2];
    std::memcpy(means, from.data(), sizeof means);
    for (float& mean : means) mean *= factor;
    const auto* const bits = reinterpret_cast<const uint8_t*>(from.data()) + sizeof means;
    kernels_.decode_sides(bits, count, means, to);
    return bytes;
  }

 private:
  const std::string spec_;
  const int64_t block_;
  const CodecKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<Codec>> MakeTwoMeansCodec(CodecSpec& spec) {
  const int64_t block = spec.TakeInteger("block", 512, 8, 65536, 8);
  RABIT_RETURN_IF_ERROR(spec.Finish());
  return MakeTwoPhaseCodec(std::make_unique<TwoMeansCoder>(spec.canonical(), block),
                           SumFeedback::kKept);
}

}  // namespace rabit
