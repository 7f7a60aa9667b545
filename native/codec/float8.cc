#include "codec/float8.h"

#include <bit>
#include <string>
#include <utility>

#include "codec/codec_kernels.h"
#include "codec/scaled_coder.h"

namespace rabit {
namespace {

// E4M3 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022), rounded at random, without
// bias. The largest magnitude of a block becomes 448, the largest of the format.  Encoding: the
// scale, then a byte for each element.
class Float8Coder final : public ScaledCoder {
 public:
  Float8Coder(std::string spec, int64_t block)
      : ScaledCoder(std::move(spec), block), kernels_(BestCodecKernels()) {}

 private:
  size_t CodeBytes(int64_t count) const override { return static_cast<size_t>(count); }
  float NormOf(const float* values, int64_t count) const override {
    return std::bit_cast<float>(kernels_.largest_bits(values, count));
  }
  void EncodeCodes(const float* values, int64_t count, float scale, uint64_t key,
                   uint8_t* to) const override {
    kernels_.encode_float8(values, count, scale, key, to);
  }
  void DecodeCodes(const uint8_t* from, int64_t count, float scale, float* to) const override {
    kernels_.decode_float8(from, count, scale, to);
  }

  const CodecKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<Codec>> MakeFloat8Codec(CodecSpec& spec) {
  const int64_t block = spec.TakeInteger("block", 512, 8, 65536, 8);
  RABIT_RETURN_IF_ERROR(spec.Finish());
  return MakeTwoPhaseCodec(std::make_unique<Float8Coder>(spec.canonical(), block));
}

}  // namespace rabit
