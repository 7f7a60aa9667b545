// Exchange: the wire as a codec sees it, for one bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/encoded_sum.h"
#include "base/result.h"
#include "base/status.h"

namespace rabit {

// Every member of the group makes the same calls in the same order; each blocks.  Ranks are
// positions inside the group.  The lane's thread.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // What the operation makes of all ranks, in place: of an average the mean, so that no sum has to
  // fit into the type.  Of a reduce: on its root only, and undefined elsewhere.
  virtual Status Allreduce(const TensorView& in_out) = 0;
  // `all` is the parts of all ranks in order; part i has part_bytes[i], which all ranks know.
  virtual Status Allgather(ConstBytes mine, Bytes all, std::span<const int64_t> part_bytes) = 0;
  // Part i of `in` goes to rank i, and part i of `out` comes from it.
  virtual Status Alltoall(ConstBytes in, std::span<const int64_t> send_bytes, Bytes out,
                          std::span<const int64_t> receive_bytes) = 0;
  // How a message of about so many bytes of encodings is divided among those that add them up on
  // the way, in chunks that have room for `largest`; empty: nobody does.  The same on all ranks.
  virtual std::vector<EncodedSlice> DivideEncoded(int64_t /*bytes*/, int64_t /*largest*/) {
    return {};
  }
  // Of slices that somebody adds up: each chunk of `in_out` is then the encoding of the sum of all
  // ranks.
  virtual Status SumEncoded(Bytes /*in_out*/, std::span<const EncodedSlice> /*slices*/) {
    return Unsupported("nobody on the way of this exchange adds encodings up; report this");
  }
  // Uninitialised memory that stays valid, and apart from other slots, until the bucket is done or
  // the slot is asked for again.
  virtual Result<Bytes> Scratch(size_t slot, size_t bytes) = 0;

  // How many bytes each rank brings to a gather whose parts differ.
  Result<std::vector<int64_t>> GatherSizes(int64_t mine) {
    const auto count = static_cast<size_t>(size());
    std::vector<int64_t> sizes(count);
    const std::vector<int64_t> part_bytes(count, sizeof(int64_t));
    sizes[static_cast<size_t>(rank())] = mine;
    const Bytes all = std::as_writable_bytes(std::span(sizes));
    RABIT_RETURN_IF_ERROR(Allgather(std::as_bytes(std::span(&mine, 1)), all, part_bytes));
    return sizes;
  }
};

inline constexpr size_t kScratchSlots = 5;

}  // namespace rabit
