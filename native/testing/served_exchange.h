// ServedExchange: an exchange on whose way a backend adds encodings up, for tests of codecs.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "testing/backend_conformance.h"
#include "testing/local_exchange.h"

namespace rabit::testing {

// All else is between threads.  `member` outlives it.
class ServedExchange final : public Exchange {
 public:
  ServedExchange(LocalHub& hub, Member& member) : ranks_(hub, member.index()), member_(member) {}

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  // Of all that were added up here.
  int64_t bytes_served() const { return bytes_served_; }

  Status Allreduce(const TensorView& in_out) override { return ranks_.Allreduce(in_out); }
  Status Allgather(ConstBytes mine, Bytes all, std::span<const int64_t> part_bytes) override {
    return ranks_.Allgather(mine, all, part_bytes);
  }
  Status Alltoall(ConstBytes in, std::span<const int64_t> send_bytes, Bytes out,
                  std::span<const int64_t> receive_bytes) override {
    return ranks_.Alltoall(in, send_bytes, out, receive_bytes);
  }
  std::vector<EncodedSlice> DivideEncoded(int64_t bytes, int64_t largest) override {
    return member_.backend().DivideEncoded(member_.Next(), bytes, largest);
  }
  Status SumEncoded(Bytes in_out, std::span<const EncodedSlice> slices) override {
    bytes_served_ += static_cast<int64_t>(in_out.size());
    return Over(member_.backend().SumEncoded(member_.Next(), in_out, slices));
  }
  Result<Bytes> Scratch(size_t slot, size_t bytes) override { return ranks_.Scratch(slot, bytes); }

 private:
  LocalExchange ranks_;
  Member& member_;
  int64_t bytes_served_ = 0;
};

}  // namespace rabit::testing
