#include "codec/encoded_layout.h"

#include <algorithm>

#include "codec/encoded_chunk.h"

namespace rabit {
namespace {

bool BeginsRun(std::span<const CodecBlock> blocks, size_t i) {
  return i == 0 || blocks[i].part != blocks[i - 1].part;
}

}  // namespace

EncodedLayout::EncodedLayout(const BlockCoder& coder, std::span<const CodecBlock> blocks)
    : coder_(coder), blocks_(blocks) {
  size_t largest = 0, all = EncodedChunk::HeadBytes(coder.spec(), 0);
  for (size_t i = 0; i < blocks.size(); ++i) {
    largest = std::max(largest, BytesOf(blocks[i]));
    all += BytesOf(blocks[i]) + (BeginsRun(blocks, i) ? EncodedChunk::kRunBytes : 0);
  }
  bytes_about_ = static_cast<int64_t>(all);
  largest_ = static_cast<int64_t>(EncodedChunk::HeadBytes(coder.spec(), 1) + largest);
}

void EncodedLayout::Divide(std::span<const EncodedSlice> wanted) {
  size_t first = 0;
  int64_t until = 0, used = 0;
  for (const EncodedSlice& slice : wanted) {
    const bool is_last = &slice == &wanted.back();
    until += slice.bytes;
    size_t end = first;
    for (; end < blocks_.size() && (is_last || used < until); ++end) {
      used += static_cast<int64_t>(BytesOf(blocks_[end]));
      if (BeginsRun(blocks_, end)) used += static_cast<int64_t>(EncodedChunk::kRunBytes);
    }
    if (end > first) AddSlice(slice, blocks_.subspan(first, end - first));
    first = end;
  }
}

// Chunks as full as blocks allow.  All but the last one of a slice have the length of the longest.
void EncodedLayout::AddSlice(const EncodedSlice& wanted, std::span<const CodecBlock> blocks) {
  const auto most = static_cast<size_t>(wanted.chunk_bytes);
  const size_t first_chunk = chunks_.size();
  const size_t empty_head = EncodedChunk::HeadBytes(coder_.spec(), 0);
  size_t first = 0, longest = 0;
  while (first < blocks.size()) {
    Chunk chunk{0, empty_head, empty_head, {}};
    size_t end = first;
    for (; end < blocks.size(); ++end) {
      const bool is_run = end == first || BeginsRun(blocks, end);
      const size_t head = is_run ? EncodedChunk::kRunBytes : 0;
      if (end > first && chunk.bytes + head + BytesOf(blocks[end]) > most) break;
      chunk.head_bytes += head;
      chunk.bytes += head + BytesOf(blocks[end]);
    }
    chunk.blocks = blocks.subspan(first, end - first);
    longest = std::max(longest, chunk.bytes);
    chunks_.push_back(chunk);
    first = end;
  }
  const size_t begin = bytes_;
  for (size_t i = first_chunk; i < chunks_.size(); ++i) {
    if (i + 1 < chunks_.size()) chunks_[i].bytes = longest;
    chunks_[i].begin = bytes_;
    bytes_ += chunks_[i].bytes;
  }
  slices_.push_back({wanted.place, static_cast<int64_t>(begin),
                     static_cast<int64_t>(bytes_ - begin), static_cast<int64_t>(longest)});
}

void EncodedLayout::Prepare(const Chunk& chunk, Bytes message) const {
  EncodedChunk described{coder_.spec(), {}};
  for (size_t i = 0; i < chunk.blocks.size(); ++i) {
    const CodecBlock& block = chunk.blocks[i];
    if (BeginsRun(chunk.blocks, i)) described.runs.push_back({block.part->key, block.index, 0});
    described.runs.back().count += static_cast<uint32_t>(block.count);
  }
  const Bytes bytes = message.subspan(chunk.begin, chunk.bytes);
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  described.WriteHead(bytes);
}

}  // namespace rabit
