#include "codec/min_max.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "codec/block_coder.h"
#include "codec/codec_kernels.h"

namespace rabit {
namespace {

// Encoding: the least value, the step between two codes, then a byte for each element.
class MinMaxCoder final : public BlockCoder {
 public:
  MinMaxCoder(std::string spec, int64_t block)
      : spec_(std::move(spec)), block_(block), kernels_(BestCodecKernels()) {}

  std::string_view spec() const override { return spec_; }
  int64_t block() const override { return block_; }

  size_t EncodedBytesMax(int64_t count) const override {
    return sizeof(Header) + static_cast<size_t>(count);
  }

  size_t Encode(const float* values, int64_t count, uint64_t, std::byte* to) const override {
    Header header;
    float largest = 0;
    kernels_.range(values, count, &header.least, &largest);
    const float range = largest - header.least;
    const bool is_finite =
        kernels_.largest_bits(values, count) <= kLargestFinite && std::isfinite(range);
    auto* const codes = reinterpret_cast<uint8_t*>(to) + sizeof header;
    if (is_finite && range >= kScaleMin) {
      header.step = range / 255.0f;
      kernels_.encode_bytes(values, count, header.least, 255.0f / range, codes);
    } else {
      std::memset(codes, 0, static_cast<size_t>(count));
      if (!is_finite) header.least = std::numeric_limits<float>::quiet_NaN();
    }
    std::memcpy(to, &header, sizeof header);
    return EncodedBytesMax(count);
  }

  Result<size_t> DecodeAdd(ConstBytes from, int64_t count, float factor, float* to) const override {
    const size_t bytes = EncodedBytesMax(count);
    RABIT_RETURN_IF_ERROR(CheckEncodedBytes(spec_, from, bytes, count));
    Header header;
    std::memcpy(&header, from.data(), sizeof header);
    const auto* const codes = reinterpret_cast<const uint8_t*>(from.data()) + sizeof header;
    kernels_.decode_bytes(codes, count, header.least, header.step, factor, to);
    return bytes;
  }

 private:
  struct Header {
    float least = 0;
    float step = 0;
  };

  const std::string spec_;
  const int64_t block_;
  const CodecKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<Codec>> MakeMinMaxCodec(CodecSpec& spec) {
  const int64_t block = spec.TakeInteger("block", 512, 8, 65536, 8);
  RABIT_RETURN_IF_ERROR(spec.Finish());
  return MakeTwoPhaseCodec(std::make_unique<MinMaxCoder>(spec.canonical(), block));
}

}  // namespace rabit
