// EncodedChunk: encoded blocks with all that somebody needs who adds them up and knows no tensor.
//
//   the specification of the codec, behind its length | the number of runs | the runs | the blocks
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace rabit {

// Blocks that follow one another in a tensor.
struct EncodedRun {
  uint64_t key = 0;  // of the tensor's random numbers
  uint64_t first_block = 0;
  uint32_t count = 0;  // elements

  // On all ranks; only one that knows no seed has another key.
  bool IsLike(const EncodedRun& other) const {
    return first_block == other.first_block && count == other.count;
  }
};

struct EncodedChunk {
  std::string_view spec;
  std::vector<EncodedRun> runs;

  static constexpr size_t kRunBytes = 20;
  // Of what is before the blocks.
  static size_t HeadBytes(std::string_view spec, size_t runs) {
    return 2 * sizeof(uint32_t) + spec.size() + runs * kRunBytes;
  }
  size_t head_bytes() const { return HeadBytes(spec, runs.size()); }

  // Into the first head_bytes() of `to`.
  void WriteHead(Bytes to) const;
  // `spec` points into `bytes`, which may have anything behind the head.
  static Result<EncodedChunk> ReadHead(ConstBytes bytes);
};

}  // namespace rabit
