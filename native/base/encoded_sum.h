// Sums of encodings, formed by whoever moves them and knows nothing of codecs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/status.h"

namespace rabit {

// What of a message of encodings one process adds up: chunks of `chunk_bytes`, the last one of what
// is left, each of which can be added by itself.
struct EncodedSlice {
  int place = 0;  // who adds it, as the backend counts
  int64_t begin = 0;
  int64_t bytes = 0;
  int64_t chunk_bytes = 0;
};

// Thread-safe.
class EncodingAdder {
 public:
  virtual ~EncodingAdder() = default;
  // `inputs`: the same chunk of each member, in the order of the ranks, each as long as `sum`,
  // which may be one of them and is then the encoding of the sum.  They come from other ranks:
  // kInternal if they cannot be chunks of one sum.
  virtual Status Add(std::span<const std::byte* const> inputs, Bytes sum) const = 0;
};

}  // namespace rabit
