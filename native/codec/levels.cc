#include "codec/levels.h"

#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "codec/codec_kernels.h"
#include "codec/scaled_coder.h"

namespace rabit {
namespace {

enum class Norm { kMax, kL2 };

// QSGD (Alistarh et al., 2017) with uniform levels, NUQSGD (Ramezani-Kebrya et al., 2021) with
// exponential ones, ALQ (Faghri et al., 2020) with a table.  Encoding: the scale, then the codes.
class LevelsCoder final : public ScaledCoder {
 public:
  // table: empty where the shape says all.
  LevelsCoder(std::string spec, LevelsShape shape, std::vector<float> table, Norm norm,
              int64_t block)
      : ScaledCoder(std::move(spec), block),
        table_(std::move(table)),
        shape_{shape.bits, shape.is_uniform, table_.empty() ? nullptr : table_.data()},
        norm_(norm),
        kernels_(BestCodecKernels()) {}

 private:
  size_t CodeBytes(int64_t count) const override {
    return static_cast<size_t>((count + 7) / 8 * shape_.bits);
  }
  float NormOf(const float* values, int64_t count) const override {
    const float largest = std::bit_cast<float>(kernels_.largest_bits(values, count));
    if (norm_ == Norm::kMax || !std::isfinite(largest)) return largest;
    return std::sqrt(kernels_.sum_of_squares(values, count));
  }
  void EncodeCodes(const float* values, int64_t count, float scale, uint64_t key,
                   uint8_t* to) const override {
    kernels_.encode_levels(values, count, shape_, scale, key, to);
  }
  void DecodeCodes(const uint8_t* from, int64_t count, float scale, float* to) const override {
    kernels_.decode_levels(from, count, shape_, scale, to);
  }

  const std::vector<float> table_;
  const LevelsShape shape_;
  const Norm norm_;
  const CodecKernels& kernels_;
};

}  // namespace

Result<std::unique_ptr<Codec>> MakeLevelsCodec(CodecSpec& spec) {
  LevelsShape shape;
  shape.bits = static_cast<int32_t>(spec.TakeInteger("bits", 4, 2, 8));
  const int64_t block = spec.TakeInteger("block", 512, 8, 65536, 8);
  std::vector<float> table;
  const size_t levels = size_t{1} << (shape.bits - 1);
  shape.is_uniform =
      spec.TakeWordOrTable("levels", {"uniform", "exponential"}, levels, &table) == 0;
  const Norm norm = spec.TakeWord("norm", {"max", "l2"}) == 0 ? Norm::kMax : Norm::kL2;
  const int64_t phases = spec.TakeInteger("phases", 2, 1, 2);
  RABIT_RETURN_IF_ERROR(spec.Finish());
  auto coder =
      std::make_unique<LevelsCoder>(spec.canonical(), shape, std::move(table), norm, block);
  if (phases == 1) return MakeGatherCodec(std::move(coder));
  return MakeTwoPhaseCodec(std::move(coder));
}

}  // namespace rabit
