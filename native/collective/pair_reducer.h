// PairReducer: reduces an arriving message into a buffer, in a given order.
#pragma once

#include "arithmetic/reduce.h"
#include "base/bytes.h"
#include "base/dtype.h"
#include "base/epilogue.h"
#include "transport/transport.h"

namespace rabit {

enum class Order { kMineFirst, kTheirsFirst };

// Must outlive the operations it is given to.
class PairReducer {
 public:
  // epilogue: for the last of the contributions.
  PairReducer(ReduceOp op, DType dtype, Order order, const Epilogue& epilogue = {})
      : op_(op), dtype_(dtype), order_(order), epilogue_(epilogue) {}

  // mine = mine op theirs, or theirs op mine; finished.
  void Run(Bytes mine, ConstBytes theirs) const {
    const bool is_mine_first = order_ == Order::kMineFirst;
    const std::byte* inputs[] = {is_mine_first ? mine.data() : theirs.data(),
                                 is_mine_first ? theirs.data() : mine.data()};
    const auto count = static_cast<int64_t>(mine.size() / SizeOf(dtype_));
    Reduce(op_, dtype_, inputs, mine.data(), count, epilogue_);
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
  const Epilogue epilogue_;
};

}  // namespace rabit
