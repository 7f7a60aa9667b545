// PairReducer: reduces an arriving message into a buffer, in a given order.
#pragma once

#include "arithmetic/reduce.h"
#include "base/bytes.h"
#include "base/dtype.h"
#include "transport/transport.h"

namespace rabit {

enum class Order { kMineFirst, kTheirsFirst };

// Must outlive the operations it is given to.
class PairReducer {
 public:
  PairReducer(ReduceOp op, DType dtype, Order order) : op_(op), dtype_(dtype), order_(order) {}

  // mine = mine op theirs, or theirs op mine.
  void Run(Bytes mine, ConstBytes theirs) const {
    const bool is_mine_first = order_ == Order::kMineFirst;
    const std::byte* inputs[] = {is_mine_first ? mine.data() : theirs.data(),
                                 is_mine_first ? theirs.data() : mine.data()};
    Reduce(op_, dtype_, inputs, mine.data(), static_cast<int64_t>(mine.size() / SizeOf(dtype_)));
  }

  PieceReducer AsPieceReducer() const {
    return {[](const void* context, Bytes target, ConstBytes piece) {
              static_cast<const PairReducer*>(context)->Run(target, piece);
            },
            this};
  }

 private:
  const ReduceOp op_;
  const DType dtype_;
  const Order order_;
};

}  // namespace rabit
