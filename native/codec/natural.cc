#include "codec/natural.h"

#include <cstring>
#include <string>

#include "codec/block_coder.h"
#include "codec/codec_kernels.h"

namespace rabit {
namespace {

// Natural compression (Horvath et al., 2019): the power of two below or above, without bias.  The
// mantissa is the distance from the one below, so that adding random bits to it and cutting it off
// rounds.  Encoding: an exponent for each element, then a sign for each.  Exponents need no scale;
// what is not finite has the exponent of infinity.
class NaturalCoder final : public BlockCoder {
 public:
  explicit NaturalCoder(std::string spec) : spec_(std::move(spec)), kernels_(BestCodecKernels()) {}

  std::string_view spec() const override { return spec_; }
  int64_t block() const override { return 512; }

  size_t EncodedBytesMax(int64_t count) const override {
    return static_cast<size_t>(count + (count + 7) / 8);
  }

  size_t Encode(const float* values, int64_t count, uint64_t key, std::byte* to) const override {
    auto* const exponents = reinterpret_cast<uint8_t*>(to);
    kernels_.encode_exponents(values, count, key, exponents);
    kernels_.encode_signs(values, count, exponents + count);
    return EncodedBytesMax(count);
  }

  Result<size_t> DecodeAdd(ConstBytes from, int64_t count, float factor, float* to) const override {
    const size_t bytes = EncodedBytesMax(count);
    RABIT_RETURN_IF_ERROR(CheckEncodedBytes(spec_, from, bytes, count));
    const auto* const exponents = reinterpret_cast<const uint8_t*>(from.data());
    kernels_.decode_powers(exponents, exponents + count, count, factor, to);
    return bytes;
  }

 private:
  const std::string spec_;
  const CodecKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<Codec>> MakeNaturalCodec(CodecSpec& spec) {
  RABIT_RETURN_IF_ERROR(spec.Finish());
  return MakeTwoPhaseCodec(std::make_unique<NaturalCoder>(spec.canonical()));
}

}  // namespace rabit
