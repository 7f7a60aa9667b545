// AlltoallRows: what an agreement says of the rows of an alltoall.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/kind.h"
#include "control/agreement.h"

namespace rabit {

// Whether both are even and of as many rows.  Then an id says all of it, in an announcement as in
// an agreement.
inline bool IsSameEvenAlltoall(const Signature& a, const Signature& b) {
  return a.splits.empty() && b.splits.empty() && a.shape == b.shape;
}

// Whether any rank may announce what was agreed as `signature` by its id alone.
inline bool IsSaidById(const Signature& signature) {
  if (signature.kind == Kind::kAlltoall) return signature.splits.empty();
  return signature.kind == Kind::kAllgather || !TraitsOf(signature.kind).has_free_rows;
}

// Of one round.  Who gets which rows of whom would be a matrix, which grows faster than the job; so
// it stays with the ranks.  What everybody must know is how much there is to move.
class AlltoallRows {
 public:
  // `said` by each of `ranks` ranks; the signatures have passed CheckAlone and CheckPair.
  void Add(const Signature& said, int ranks) {
    const int64_t rows = said.shape[0];
    is_even_ = is_even_ && said.splits.empty() && (ranks_ == 0 || rows == first_rows_);
    first_rows_ = ranks_ == 0 ? rows : first_rows_;
    ranks_ += ranks;
    // Rows without bytes may be as many as a number holds, and their sum is not worth an error.
    for (int i = 0; i < ranks; ++i)
      rows_ += std::min(rows, std::numeric_limits<int64_t>::max() - rows_);
  }

  // See ReadyTensor.
  std::vector<int64_t> Extents() const {
    if (is_even_) return {};
    return {rows_ / ranks_ + (rows_ % ranks_ > 0 ? 1 : 0)};
  }

 private:
  bool is_even_ = true;
  int64_t first_rows_ = 0;
  int64_t rows_ = 0;
  int ranks_ = 0;
};

}  // namespace rabit
