#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "codec/block_coder.h"
#include "codec/codec_block.h"
#include "codec/codec_kernels.h"
#include "codec/encoded_layout.h"
#include "codec/random.h"

namespace rabit {
namespace {

// The slots of Exchange::Scratch.
enum Slot : size_t { kValues, kMine, kTheirs, kAll };

// Null where the view has no data.
float* At(const TensorView& view, int64_t first) {
  return view.data == nullptr ? nullptr : static_cast<float*>(view.data) + first;
}

// Of tensors of float32, allreduced.
class BlockCodec : public Codec {
 public:
  explicit BlockCodec(std::unique_ptr<const BlockCoder> coder)
      : coder_(std::move(coder)), kernels_(BestCodecKernels()) {}

  std::string_view spec() const final { return coder_->spec(); }
  int64_t block() const final { return coder_->block(); }
  int residuals() const override { return 1; }
  Status Accepts(Kind kind, DType dtype) const final {
    if (kind == Kind::kAllreduce && dtype == DType::kFloat32) return {};
    return Unsupported("codec '" + std::string(spec()) + "' is for allreduce of float32, not " +
                       std::string(Name(kind)) + " of " + std::string(Name(dtype)) +
                       ". Use no compression, or fp16 or bf16");
  }

 protected:
  int64_t LargestBlock(std::span<const CodecBlock> blocks) const {
    int64_t largest = 0;
    for (const CodecBlock& block : blocks) largest = std::max(largest, block.count);
    return largest;
  }

  // Encodes what this rank has of a block, and leaves in the residual what the encoding lacks.  A
  // residual of a block with values that are not finite stays as it is: the caller's step is lost
  // and what was left before is not.  `values`: room for a block.
  size_t EncodeOwn(const CodecBlock& block, int rank, float* values, std::byte* to) const {
    // The key has the rank, so that ranks round by different numbers and their errors cancel out in
    // the sum.
    const uint64_t key = KeyOfBlock(block.part->key, static_cast<uint64_t>(rank), block.index);
    const float* input = At(block.part->in, block.first);
    float* const residual = At(block.part->residual, block.first);
    if (input == nullptr) {
      std::fill_n(values, block.count, 0.0f);
      return coder_->Encode(values, block.count, key, to);
    }
    return EncodeAndKeep(input, residual, block.count, key, values, to);
  }

  // Encodes input + residual, by way of `values`, which may be the input; what that loses is the
  // residual then.  None: encodes the input.
  size_t EncodeAndKeep(const float* input, float* residual, int64_t count, uint64_t key,
                       float* values, std::byte* to) const {
    if (residual == nullptr) return coder_->Encode(input, count, key, to);
    const uint32_t largest = kernels_.add(input, residual, values, count);
    const size_t bytes = coder_->Encode(values, count, key, to);
    if (largest <= kLargestFinite) {
      std::copy_n(values, count, residual);
      (void)coder_->DecodeAdd({to, bytes}, count, -1.0f, residual);  // it is our own
    }
    return bytes;
  }

  const std::unique_ptr<const BlockCoder> coder_;
  const CodecKernels& kernels_;
};

class TwoPhaseCodec final : public BlockCodec {
 public:
  TwoPhaseCodec(std::unique_ptr<const BlockCoder> coder, SumFeedback feedback)
      : BlockCodec(std::move(coder)), feedback_(feedback) {}

  int residuals() const override { return feedback_ == SumFeedback::kKept ? 2 : 1; }

  // What sums lose is kept where they are encoded, and is an operand of ranks.
  const BlockCoder* summable() const override {
    return feedback_ == SumFeedback::kKept ? nullptr : coder_.get();
  }

  Status Reduce(Exchange& wire, std::span<const CodecPart> parts) const override {
    std::vector<CodecBlock> blocks = BlocksOf(parts, block());
    if (blocks.empty()) return {};
    if (summable() != nullptr) {
      EncodedLayout layout(*coder_, blocks);
      layout.Divide(wire.DivideEncoded(layout.bytes_about(), layout.largest()));
      if (!layout.slices().empty()) return ReduceOnTheWay(wire, blocks, layout);
    }
    return ReduceAmongRanks(wire, blocks);
  }

 private:
  // One phase, in which others add up: they do for each block what its owner would.
  Status ReduceOnTheWay(Exchange& wire, std::span<const CodecBlock> blocks,
                        const EncodedLayout& layout) const {
    RABIT_ASSIGN_OR_RETURN(const Bytes message, wire.Scratch(kMine, layout.bytes()));
    RABIT_ASSIGN_OR_RETURN(const Bytes values, ValuesOf(wire, blocks));
    auto* const room = reinterpret_cast<float*>(values.data());
    for (const EncodedLayout::Chunk& chunk : layout.chunks()) {
      layout.Prepare(chunk, message);
      size_t at = chunk.begin + chunk.head_bytes;
      for (const CodecBlock& block : chunk.blocks)
        at += EncodeOwn(block, wire.rank(), room, message.data() + at);
    }
    RABIT_RETURN_IF_ERROR(wire.SumEncoded(message, layout.slices()));
    for (const EncodedLayout::Chunk& chunk : layout.chunks()) {
      const Bytes sums = message.subspan(chunk.begin, chunk.bytes).subspan(chunk.head_bytes);
      RABIT_RETURN_IF_ERROR(DecodeAll(chunk.blocks, sums));
    }
    return {};
  }

  Status ReduceAmongRanks(Exchange& wire, std::vector<CodecBlock>& blocks) const {
    const std::vector<size_t> firsts = feedback_ == SumFeedback::kKept
                                           ? SharesByIndex(blocks, wire.size())
                                           : Shares(blocks.size(), wire.size());
    std::vector<int64_t> share_bytes(firsts.size() - 1);
    // Sizes are the largest possible and not the real ones: every rank can compute them, so none is
    // exchanged.
    for (size_t rank = 0; rank + 1 < firsts.size(); ++rank) {
      for (size_t i = firsts[rank]; i < firsts[rank + 1]; ++i)
        share_bytes[rank] += static_cast<int64_t>(coder_->EncodedBytesMax(blocks[i].count));
    }
    int64_t total = 0;
    for (int64_t bytes : share_bytes) total += bytes;
    RABIT_ASSIGN_OR_RETURN(const Bytes mine, wire.Scratch(kMine, static_cast<size_t>(total)));
    RABIT_ASSIGN_OR_RETURN(const Bytes values, ValuesOf(wire, blocks));
    auto* const room = reinterpret_cast<float*>(values.data());
    size_t at = 0;
    for (const CodecBlock& block : blocks)
      at += EncodeOwn(block, wire.rank(), room, mine.data() + at);

    const auto rank = static_cast<size_t>(wire.rank());
    const std::span<const CodecBlock> owned(&blocks[0] + firsts[rank],
                                            firsts[rank + 1] - firsts[rank]);
    const std::vector<int64_t> received(share_bytes.size(), share_bytes[rank]);
    RABIT_ASSIGN_OR_RETURN(
        const Bytes theirs,
        wire.Scratch(kTheirs, static_cast<size_t>(share_bytes[rank]) * received.size()));
    RABIT_RETURN_IF_ERROR(wire.Alltoall(mine, share_bytes, theirs, received));

    RABIT_ASSIGN_OR_RETURN(const Bytes all, wire.Scratch(kAll, static_cast<size_t>(total)));
    int64_t before = 0;
    for (size_t i = 0; i < rank; ++i) before += share_bytes[i];
    const Bytes share =
        all.subspan(static_cast<size_t>(before), static_cast<size_t>(share_bytes[rank]));
    RABIT_RETURN_IF_ERROR(SumShare(owned, theirs, received.size(), room, share));
    RABIT_RETURN_IF_ERROR(wire.Allgather(share, all, share_bytes));
    return DecodeAll(blocks, all);
  }

  // The first block of every rank's share, and the end.
  static std::vector<size_t> Shares(size_t blocks, int size) {
    std::vector<size_t> firsts;
    const auto ranks = static_cast<size_t>(size);
    for (size_t rank = 0; rank <= ranks; ++rank) firsts.push_back(blocks * rank / ranks);
    return firsts;
  }

  // Orders the blocks by the rank that adds them up, which their place in the tensor alone decides:
  // what a rank keeps of a block's sum is then for that block in the next call too, however
  // tensors are cut and joined.
  static std::vector<size_t> SharesByIndex(std::vector<CodecBlock>& blocks, int size) {
    const auto ranks = static_cast<uint64_t>(size);
    const auto owner = [ranks](const CodecBlock& block) { return block.index % ranks; };
    // stable_sort: blocks of one owner keep the order in which every rank has them.
    std::stable_sort(blocks.begin(), blocks.end(),
                     [&](const CodecBlock& a, const CodecBlock& b) { return owner(a) < owner(b); });
    std::vector<size_t> firsts(ranks + 1, 0);
    for (const CodecBlock& block : blocks) ++firsts[owner(block) + 1];
    for (size_t rank = 0; rank < ranks; ++rank) firsts[rank + 1] += firsts[rank];
    return firsts;
  }

  Result<Bytes> ValuesOf(Exchange& wire, std::span<const CodecBlock> blocks) const {
    return wire.Scratch(kValues, static_cast<size_t>(LargestBlock(blocks)) * sizeof(float));
  }

  // `theirs`: the same blocks of every rank, one rank after the other.
  Status SumShare(std::span<const CodecBlock> owned, ConstBytes theirs, size_t ranks, float* sum,
                  Bytes share) const {
    size_t at = 0;
    for (const CodecBlock& block : owned) {
      std::fill_n(sum, block.count, 0.0f);
      // In rank order, so that the sum has the same bits in every run.
      for (size_t rank = 0; rank < ranks; ++rank) {
        RABIT_ASSIGN_OR_RETURN(
            [[maybe_unused]] const size_t read,
            coder_->DecodeAdd(theirs.subspan(rank * share.size() + at), block.count, 1.0f, sum));
      }
      at += EncodeSum(block, sum, share.data() + at);
    }
    return {};
  }

  // As EncodeOwn, of the sum of all ranks.
  size_t EncodeSum(const CodecBlock& block, float* sum, std::byte* to) const {
    // One rank encodes the sum for all, and all decode the same bytes: the results are equal bit by
    // bit.
    const uint64_t key = KeyOfBlock(block.part->key, kForAllRanks, block.index);
    float* const residual = At(block.part->sum_residual, block.first);
    return EncodeAndKeep(sum, residual, block.count, key, sum, to);
  }

  Status DecodeAll(std::span<const CodecBlock> blocks, ConstBytes all) const {
    size_t at = 0;
    for (const CodecBlock& block : blocks) {
      if (float* const out = At(block.part->out, block.first); out != nullptr) {
        std::fill_n(out, block.count, 0.0f);
        RABIT_ASSIGN_OR_RETURN([[maybe_unused]] const size_t read,
                               coder_->DecodeAdd(all.subspan(at), block.count, 1.0f, out));
      }
      at += coder_->EncodedBytesMax(block.count);
    }
    return {};
  }

  const SumFeedback feedback_;
};

class GatherCodec final : public BlockCodec {
 public:
  using BlockCodec::BlockCodec;

  Status Reduce(Exchange& wire, std::span<const CodecPart> parts) const override {
    const std::vector<CodecBlock> blocks = BlocksOf(parts, block());
    if (blocks.empty()) return {};
    size_t most = 0;
    for (const CodecBlock& block : blocks) most += coder_->EncodedBytesMax(block.count);
    RABIT_ASSIGN_OR_RETURN(const Bytes room, wire.Scratch(kMine, most));
    RABIT_ASSIGN_OR_RETURN(
        const Bytes values,
        wire.Scratch(kValues, static_cast<size_t>(LargestBlock(blocks)) * sizeof(float)));
    auto* const block_values = reinterpret_cast<float*>(values.data());
    size_t used = 0;
    for (const CodecBlock& block : blocks)
      used += EncodeOwn(block, wire.rank(), block_values, room.data() + used);

    RABIT_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                           wire.GatherSizes(static_cast<int64_t>(used)));
    size_t total = 0;
    for (int64_t bytes : sizes) {
      // The sizes come over the network and decide how much is allocated.
      if (bytes < 0 || static_cast<size_t>(bytes) > most) {
        return Internal("codec '" + std::string(spec()) + "': a rank announced " +
                        std::to_string(bytes) + " bytes where at most " + std::to_string(most) +
                        " are possible. Report this");
      }
      total += static_cast<size_t>(bytes);
    }
    RABIT_ASSIGN_OR_RETURN(const Bytes all, wire.Scratch(kAll, total));
    RABIT_RETURN_IF_ERROR(wire.Allgather(room.first(used), all, sizes));
    for (const CodecPart& part : parts) {
      if (part.out.data != nullptr) std::memset(part.out.data, 0, part.out.bytes());
    }
    size_t at = 0;
    for (int64_t bytes : sizes) {
      const Bytes encoded = all.subspan(at, static_cast<size_t>(bytes));
      RABIT_RETURN_IF_ERROR(AddAll(blocks, encoded, block_values));
      at += encoded.size();
    }
    return {};
  }

 private:
  // `unwanted`: where blocks go that nobody wants; their sizes are known only by decoding.
  Status AddAll(std::span<const CodecBlock> blocks, ConstBytes encoded, float* unwanted) const {
    for (const CodecBlock& block : blocks) {
      float* const out = At(block.part->out, block.first);
      RABIT_ASSIGN_OR_RETURN(const size_t read, coder_->DecodeAdd(encoded, block.count, 1.0f,
                                                                  out == nullptr ? unwanted : out));
      encoded = encoded.subspan(read);
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Codec> MakeTwoPhaseCodec(std::unique_ptr<const BlockCoder> coder,
                                         SumFeedback feedback) {
  return std::make_unique<TwoPhaseCodec>(std::move(coder), feedback);
}

std::unique_ptr<Codec> MakeGatherCodec(std::unique_ptr<const BlockCoder> coder) {
  return std::make_unique<GatherCodec>(std::move(coder));
}

Status CheckEncodedBytes(std::string_view spec, ConstBytes from, size_t bytes, int64_t count) {
  if (from.size() >= bytes) return {};
  return InvalidArgument("codec '" + std::string(spec) + "': an encoding of " +
                         std::to_string(count) + " elements has " + std::to_string(from.size()) +
                         " bytes where " + std::to_string(bytes) +
                         " are expected. The ranks run different versions, or report this.");
}

}  // namespace rabit
