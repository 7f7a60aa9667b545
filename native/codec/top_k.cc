#include "codec/top_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codec/block_coder.h"
#include "codec/codec_kernels.h"
#include "codec/entries.h"
#include "codec/random.h"

namespace rabit {
namespace {

// A sample of one element in so many, but of some thousands, finds the threshold to within a few
// percent; blocks that are hardly larger are searched as a whole.
constexpr int64_t kSampledOneIn = 100;
constexpr int64_t kSampleMin = 4096;
// How much above the wanted number a sampled threshold aims, so that it rarely finds fewer: of what
// it finds the largest are kept, no more than are wanted.  Fewer than this are searched for again.
constexpr double kAim = 1.2;
constexpr double kFewest = 0.8;

uint32_t MagnitudeBits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffu;
}

// Aji and Heafield, 2017; the sampled threshold is that of Deep Gradient Compression (Lin et al.,
// 2018).  Zeros are never sent.  Encoding: entries.
class TopKCoder final : public BlockCoder {
 public:
  TopKCoder(std::string spec, double ratio, bool is_exact, int64_t block)
      : spec_(std::move(spec)),
        ratio_(ratio),
        is_exact_(is_exact),
        block_(block),
        kernels_(BestCodecKernels()) {}

  std::string_view spec() const override { return spec_; }
  int64_t block() const override { return block_; }

  size_t EncodedBytesMax(int64_t count) const override {
    return EntriesBytes(static_cast<size_t>(Wanted(count)));
  }

  size_t Encode(const float* values, int64_t count, uint64_t key, std::byte* to) const override {
    const std::vector<uint32_t> kept = Choose(values, count, key);
    return WriteEntries(kept, values, to);
  }

  Result<size_t> DecodeAdd(ConstBytes from, int64_t count, float factor, float* to) const override {
    return AddEntries(spec_, from, count, factor, to);
  }

 private:
  int64_t Wanted(int64_t count) const {
    const auto wanted = static_cast<int64_t>(std::llround(ratio_ * static_cast<double>(count)));
    return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(count, 1));
  }

  // Ascending indices.
  std::vector<uint32_t> Choose(const float* values, int64_t count, uint64_t key) const {
    const int64_t wanted = Wanted(count);
    std::vector<uint32_t> sample;
    if (!is_exact_ && count > 2 * kSampleMin) sample = Sample(values, count, key);
    // One more than there are elements: where the loop writes after the last one.
    const auto room = std::make_unique_for_overwrite<uint32_t[]>(static_cast<size_t>(count) + 1);
    std::vector<uint32_t> kept;
    double aim = kAim;
    for (;;) {
      const uint32_t threshold =
          ThresholdOf(sample, aim * static_cast<double>(wanted) / static_cast<double>(count));
      const int64_t selected = kernels_.select(values, count, threshold, room.get());
      kept.assign(room.get(), room.get() + selected);
      const auto found = static_cast<double>(kept.size());
      if (threshold == 1 || found >= kFewest * static_cast<double>(wanted)) break;
      aim *= 2;
    }
    if (static_cast<int64_t>(kept.size()) > wanted) KeepLargest(values, wanted, kept);
    return kept;
  }

  // One from each of equal parts, at a random place.
  std::vector<uint32_t> Sample(const float* values, int64_t count, uint64_t key) const {
    const int64_t size = std::max(count / kSampledOneIn, kSampleMin);
    const int64_t part = count / size;
    std::vector<uint32_t> sample(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      const uint64_t random = RandomBits(key, static_cast<uint32_t>(i));
      const auto place = static_cast<int64_t>((random * static_cast<uint64_t>(part)) >> 32);
      sample[static_cast<size_t>(i)] = MagnitudeBits(values[i * part + place]);
    }
    return sample;
  }

  // The magnitude that so many of the sample reach; 1, which is everything but zeros, where the
  // sample has fewer.
  static uint32_t ThresholdOf(std::vector<uint32_t>& sample, double fraction) {
    const auto rank = static_cast<size_t>(fraction * static_cast<double>(sample.size()));
    if (rank >= sample.size()) return 1;
    const auto at = sample.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(sample.begin(), at, sample.end(), std::greater<>());
    return std::max(*at, 1u);
  }

  // Of equal magnitudes the first ones stay.
  static void KeepLargest(const float* values, int64_t wanted, std::vector<uint32_t>& kept) {
    std::vector<uint32_t> bits(kept.size());
    for (size_t i = 0; i < kept.size(); ++i) bits[i] = MagnitudeBits(values[kept[i]]);
    const auto last = bits.begin() + static_cast<std::ptrdiff_t>(wanted - 1);
    std::nth_element(bits.begin(), last, bits.end(), std::greater<>());
    const uint32_t least = *last;
    const auto above =
        std::count_if(bits.begin(), last, [least](uint32_t each) { return each > least; });
    int64_t ties = wanted - above;
    std::erase_if(kept, [&](uint32_t index) {
      const uint32_t magnitude = MagnitudeBits(values[index]);
      return magnitude < least || (magnitude == least && ties-- <= 0);
    });
  }

  const std::string spec_;
  const double ratio_;
  const bool is_exact_;
  const int64_t block_;
  const CodecKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<Codec>> MakeTopKCodec(CodecSpec& spec) {
  const double ratio = spec.TakeFraction("ratio", 0.01);
  const int64_t block = spec.TakeInteger("block", 1 << 20, 8, 1 << 24, 8);
  const bool is_exact = spec.TakeWord("count", {"sampled", "exact"}) == 1;
  RABIT_RETURN_IF_ERROR(spec.Finish());
  return MakeGatherCodec(std::make_unique<TopKCoder>(spec.canonical(), ratio, is_exact, block));
}

}  // namespace rabit
