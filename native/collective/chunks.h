// How buffers are cut: parts for ranks, chunks for pipelining.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/measured.h"
#include "transport/transport.h"

namespace rabit {

// Half-open, in elements.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
  bool empty() const { return begin == end; }
};

// Part `index` of `parts` nearly equal ones; the first ones are one element longer.
inline Range PartOf(Range whole, int parts, int index) {
  const int64_t each = whole.count() / parts;
  const int64_t longer = whole.count() % parts;
  const int64_t begin = whole.begin + index * each + std::min<int64_t>(index, longer);
  return {begin, begin + each + (index < longer ? 1 : 0)};
}

// Chunk k of `whole`; empty past the end.
inline Range ChunkOf(Range whole, int64_t chunk_count, int64_t k) {
  const int64_t begin = std::min(whole.end, whole.begin + k * chunk_count);
  return {begin, std::min(whole.end, begin + chunk_count)};
}

inline int64_t ChunksIn(Range whole, int64_t chunk_count) {
  return (whole.count() + chunk_count - 1) / chunk_count;
}

// Where the transport has no say.
inline constexpr int64_t kChunkBytesMax = ChunkLimits().bytes_max;

// Elements per chunk for a pipeline over `bytes`: about eight chunks, so that receiving, reducing
// and sending overlap, but never so small that the cost per message shows.  Depends on nothing but
// its arguments: all ranks cut alike.
inline int64_t ChunkCountFor(ChunkLimits limits, int64_t bytes, DType dtype) {
  const int64_t chunk_bytes = std::clamp(bytes / 8, limits.bytes_min, limits.bytes_max);
  return chunk_bytes / static_cast<int64_t>(SizeOf(dtype));
}

// The most bytes of a message to or from `peer`, of `bytes` that are reduced when they arrive or
// have just been reduced; `most` where the transport makes no difference.
inline int64_t CachedChunkBytes(const Transport& transport, int peer, int64_t bytes, int64_t most) {
  const int64_t cached = transport.cached_message_bytes(peer);
  return cached > 0 && bytes < kCachedBytes ? std::min(cached, most) : most;
}

// The elements of a tensor, by range.
class Elements {
 public:
  Elements(void* data, DType dtype) : data_(static_cast<std::byte*>(data)), dtype_(dtype) {}
  explicit Elements(const TensorView& view) : Elements(view.data, view.dtype) {}

  DType dtype() const { return dtype_; }
  int64_t BytesIn(int64_t count) const { return count * static_cast<int64_t>(SizeOf(dtype_)); }
  std::byte* At(int64_t index) const { return data_ + BytesIn(index); }
  Bytes In(Range range) const {
    if (range.empty()) return {};
    return {At(range.begin), static_cast<size_t>(BytesIn(range.count()))};
  }

 private:
  std::byte* data_;
  DType dtype_;
};

}  // namespace rabit
