#include "codec/by_chance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "codec/block_coder.h"
#include "codec/codec_kernels.h"
#include "codec/entries.h"

namespace rabit {
namespace {

// Gradient sparsification (Wangni et al., 2018, the greedy algorithm): element i goes with the
// chance p = min(rate * |x|, 1), as x / p.  Encoding: entries.
class ByChanceCoder final : public BlockCoder {
 public:
  ByChanceCoder(std::string spec, double ratio, int64_t block)
      : spec_(std::move(spec)), ratio_(ratio), block_(block), kernels_(BestCodecKernels()) {}

  std::string_view spec() const override { return spec_; }
  int64_t block() const override { return block_; }

  size_t EncodedBytesMax(int64_t count) const override {
    return EntriesBytes(static_cast<size_t>(count));
  }

  size_t Encode(const float* values, int64_t count, uint64_t key, std::byte* to) const override {
    // One more than there are elements: where the loop writes after the last one.
    const auto room = std::make_unique_for_overwrite<uint32_t[]>(static_cast<size_t>(count) + 1);
    const auto scaled = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count));
    const uint32_t largest = kernels_.largest_bits(values, count);
    const float rate = largest > kLargestFinite ? 0 : Rate(values, count);
    int64_t found = 0;
    if (largest == 0) {
      // Zeros are never sent.
    } else if (rate == 0) {  // The largest says for all that there is no sum.
      found = kernels_.select(values, count, largest, room.get());
      for (int64_t i = 0; i < found; ++i) scaled[room[i]] = std::numeric_limits<float>::quiet_NaN();
    } else {
      found = kernels_.draw(values, count, rate, key, room.get());
      for (int64_t i = 0; i < found; ++i) {
        const float value = values[room[i]];
        scaled[room[i]] = std::abs(value) * rate < 1 ? std::copysign(1 / rate, value) : value;
      }
    }
    return WriteEntries({room.get(), static_cast<size_t>(found)}, scaled.get(), to);
  }

  Result<size_t> DecodeAdd(ConstBytes from, int64_t count, float factor, float* to) const override {
    return AddEntries(spec_, from, count, factor, to);
  }

 private:
  // Two corrections for what goes surely come within 1 %.  0: the sum is not finite.
  float Rate(const float* values, int64_t count) const {
    double sum = 0;
    kernels_.sum_below(values, count, std::numeric_limits<float>::infinity(), &sum);
    if (!std::isfinite(sum)) return 0;
    const double wanted = ratio_ * static_cast<double>(count);
    double rate = wanted / sum;
    for (int turn = 0; turn < 2; ++turn) {
      const int64_t sure = count - kernels_.sum_below(values, count, Bound(rate), &sum);
      const double factor = (wanted - static_cast<double>(sure)) / (sum * rate);
      if (!(factor > 1) || !std::isfinite(factor)) break;
      rate *= factor;
    }
    return static_cast<float>(std::min(rate, double{std::numeric_limits<float>::max()}));
  }

  // Magnitudes from here on go surely.
  static float Bound(double rate) {
    constexpr double kLeast = std::numeric_limits<float>::min();
    return static_cast<float>(
        std::clamp(1 / rate, kLeast, double{std::numeric_limits<float>::max()}));
  }

  const std::string spec_;
  const double ratio_;
  const int64_t block_;
  const CodecKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<Codec>> MakeByChanceCodec(CodecSpec& spec) {
  const double ratio = spec.TakeFraction("ratio", 0.05);
  const int64_t block = spec.TakeInteger("block", 1 << 20, 8, 1 << 24, 8);
  RABIT_RETURN_IF_ERROR(spec.Finish());
  return MakeGatherCodec(std::make_unique<ByChanceCoder>(spec.canonical(), ratio, block));
}

}  // namespace rabit
