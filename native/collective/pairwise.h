// Exchanges between two ranks, and the folding that gives log2 algorithms any number of ranks.
#pragma once

#include "base/dtype.h"
#include "base/status.h"
#include "collective/call.h"
#include "collective/late_sends.h"
#include "collective/pair_reducer.h"

namespace rabit {

// Sends `outgoing` to `peer` and reduces what the peer sends into `into`; either may be empty, and
// they are the same memory or do not overlap.  Both sides must cut alike: the peer's `outgoing` has
// the size of `into`, and the other way round.  Pipelined by chunk.
// `late`: for one whose peer answers later in the collective (Transport::SendAnswered), and whose
// two memories do not overlap.  `outgoing` is then in use until that answer or until `late` ends.
Status ExchangeAndReduce(const CollectiveCall& call, int peer, Tag tag, ConstBytes outgoing,
                         Bytes into, DType dtype, ReduceOp op, Order order,
                         LateSends* late = nullptr);

// Each way one message, or several where those are faster; an empty one is not sent.  With `late`
// `outgoing` is in use until that ends.
Status Exchange(const CollectiveCall& call, int peer, Tag tag, ConstBytes outgoing, Bytes into,
                LateSends* late = nullptr);

// Rabenseifner's folding: the first 2 * extra ranks form pairs, of which the odd one takes part for
// both, so that a power of two remains.
class Folding {
 public:
  Folding(int rank, int size);

  int power() const { return power_; }  // how many take part
  bool takes_part() const { return index_ >= 0; }
  int index() const { return index_; }  // among those that take part
  int RankOf(int index) const { return index < extra_ ? 2 * index + 1 : index + extra_; }
  int partner() const { return partner_; }  // the other of the pair, -1: none

 private:
  int power_ = 1;
  int extra_ = 0;
  int index_ = -1;
  int partner_ = -1;
};

}  // namespace rabit
