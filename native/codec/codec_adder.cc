#include "codec/codec_adder.h"

#include <algorithm>
#include <string>
#include <vector>

#include "codec/block_coder.h"
#include "codec/codec_block.h"
#include "codec/codec_table.h"
#include "codec/encoded_chunk.h"
#include "codec/random.h"

namespace rabit {
namespace {

Status CannotAdd(const std::string& why) {
  return Internal("encodings that cannot be added up: " + why +
                  "; run the same version of rabit on every worker and server");
}

class CodecAdder final : public EncodingAdder {
 public:
  CodecAdder() : codecs_(MakeCodecSet()) {}

  Status Add(std::span<const std::byte* const> inputs, Bytes sum) const override {
    RABIT_ASSIGN_OR_RETURN(const EncodedChunk chunk,
                           EncodedChunk::ReadHead({inputs[0], sum.size()}));
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      RABIT_RETURN_IF_ERROR(CheckAlike(chunk, {inputs[rank], sum.size()}, rank));
    }
    RABIT_ASSIGN_OR_RETURN(const CodecHold codec, SummableCodec(chunk.spec));
    size_t at = chunk.head_bytes();
    for (const EncodedRun& run : chunk.runs) {
      RABIT_RETURN_IF_ERROR(AddRun(*codec->summable(), run, inputs, sum, at));
    }
    return Status();
  }

 private:
  Result<CodecHold> SummableCodec(std::string_view spec) const {
    RABIT_ASSIGN_OR_RETURN(CodecHold codec, codecs_->Find(spec));
    if (codec->summable() != nullptr) return codec;
    return CannotAdd("those of codec '" + std::string(spec) + "' are added up by ranks alone");
  }

  static Status CheckAlike(const EncodedChunk& first, ConstBytes bytes, size_t rank) {
    RABIT_ASSIGN_OR_RETURN(const EncodedChunk chunk, EncodedChunk::ReadHead(bytes));
    const auto is_alike = [](const EncodedRun& a, const EncodedRun& b) { return a.IsLike(b); };
    const bool has_runs = std::equal(chunk.runs.begin(), chunk.runs.end(), first.runs.begin(),
                                     first.runs.end(), is_alike);
    if (chunk.spec == first.spec && has_runs) return Status();
    return CannotAdd("member " + std::to_string(rank) + " has " +
                     std::to_string(chunk.runs.size()) + " runs of '" + std::string(chunk.spec) +
                     "', the first one other " + std::to_string(first.runs.size()) + " of '" +
                     std::string(first.spec) + "'");
  }

  // The sum may lie where an input does: a block is decoded before it is encoded.
  static Status AddRun(const BlockCoder& coder, const EncodedRun& run,
                       std::span<const std::byte* const> inputs, Bytes sum, size_t& at) {
    const int64_t count = run.count;
    std::vector<float> values(static_cast<size_t>(std::min(coder.block(), count)));
    for (int64_t first = 0; first < count; first += coder.block()) {
      const int64_t here = std::min(coder.block(), count - first);
      const size_t bytes = coder.EncodedBytesMax(here);
      if (bytes > sum.size() - at) {
        return CannotAdd("a run of " + std::to_string(count) + " elements does not fit into " +
                         std::to_string(sum.size()) + " bytes");
      }
      std::fill_n(values.begin(), here, 0.0f);
      for (const std::byte* const input : inputs) {
        RABIT_ASSIGN_OR_RETURN([[maybe_unused]] const size_t read,
                               coder.DecodeAdd({input + at, bytes}, here, 1.0f, values.data()));
      }
      const uint64_t index = run.first_block + static_cast<uint64_t>(first / coder.block());
      coder.Encode(values.data(), here, KeyOfBlock(run.key, kForAllRanks, index), &sum[at]);
      at += bytes;
    }
    return Status();
  }

  const std::unique_ptr<CodecSet> codecs_;
};

}  // namespace

std::unique_ptr<const EncodingAdder> MakeCodecAdder() { return std::make_unique<CodecAdder>(); }

}  // namespace rabit
