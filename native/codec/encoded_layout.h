// EncodedLayout: where the blocks of a message lie whose parts others add up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/encoded_sum.h"
#include "codec/block_coder.h"
#include "codec/codec_block.h"

namespace rabit {

// A function of what all ranks know alike: the blocks, and who adds how much.
class EncodedLayout {
 public:
  struct Chunk {
    size_t begin = 0;  // of the message
    size_t bytes = 0;
    size_t head_bytes = 0;
    std::span<const CodecBlock> blocks;
  };

  // For a coder of a fixed rate.
  EncodedLayout(const BlockCoder& coder, std::span<const CodecBlock> blocks);

  // About how much there is to be divided, and what fits into every chunk.
  int64_t bytes_about() const { return bytes_about_; }
  int64_t largest() const { return largest_; }

  // `wanted`: how many bytes each shall add, and the most that its chunks may have, which is not
  // less than largest().  Once.
  void Divide(std::span<const EncodedSlice> wanted);

  std::span<const EncodedSlice> slices() const { return slices_; }
  std::span<const Chunk> chunks() const { return chunks_; }
  size_t bytes() const { return bytes_; }
  // The head of a chunk of the message, and zeros in all of it that no block fills.
  void Prepare(const Chunk& chunk, Bytes message) const;

 private:
  size_t BytesOf(const CodecBlock& block) const { return coder_.EncodedBytesMax(block.count); }
  void AddSlice(const EncodedSlice& wanted, std::span<const CodecBlock> blocks);

  const BlockCoder& coder_;
  const std::span<const CodecBlock> blocks_;
  int64_t bytes_about_ = 0;
  int64_t largest_ = 0;
  size_t bytes_ = 0;
  std::vector<EncodedSlice> slices_;
  std::vector<Chunk> chunks_;
};

}  // namespace rabit
