// Who kept the others waiting: arrival skew per rank and tensor, and the texts about it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_writer.h"
#include "control/tensor_record.h"

namespace rabit {

struct WaitSpan {
  int64_t begin_us = 0;
  int64_t end_us = 0;
};

struct RankSkew {
  uint64_t times = 0;    // how often this rank was the last
  int64_t total_us = 0;  // from the arrival of the last but one; time counts once
  int64_t max_us = 0;
  std::string worst_tensor;
  std::deque<WaitSpan> recent;  // disjoint, ascending: what `total_us` has counted lately

  // The span ends no earlier than those before it.
  void Wait(WaitSpan span);
};

class SkewStatistics {
 public:
  explicit SkewStatistics(int size) : ranks_(static_cast<size_t>(size)) {}

  // A round in which every member has arrived.
  void Add(TensorRecord& record);
  const std::vector<RankSkew>& ranks() const { return ranks_; }

  // "waited_for":[…],"skew":[…]; ranks and tensors in order of the time they cost.
  void Write(const RecordTable& records, JsonWriter& json) const;

 private:
  std::vector<RankSkew> ranks_;
};

// "'conv1.weight' (allreduce float32[64]): ready on ranks 0-2, waits 12.3 s for rank 3"
std::string WaitingLine(const TensorRecord& record, std::vector<int> absent, int64_t now_us);

}  // namespace rabit
