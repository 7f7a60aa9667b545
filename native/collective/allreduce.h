// Allreduce algorithms: plain blocking functions over a Transport, and the table that names them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/group.h"
#include "base/status.h"
#include "transport/transport.h"

namespace rabit {

// The transport's ranks are the members of the collective (see transport/group_transport.h).
struct AllreduceArgs {
  TensorView buffer;  // reduced in place
  ReduceOp op = ReduceOp::kSum;
  Tag tag = 0;  // the low kTagStepBits are zero and free for the algorithm
  Deadline deadline;
  std::span<const int> host_of;  // by rank of the transport; for hierarchical algorithms
};

struct LinkModel {
  double latency_us = 20;
  double bytes_per_us = 2000;
  double reduce_bytes_per_us = 8000;
};

struct AllreduceAlgorithm {
  std::string_view name;     // "ring"
  std::string_view summary;  // "bandwidth-optimal; 2(n-1) steps"
  // Sums every element in rank order, whatever the size or offset of the buffer.
  bool is_rank_ordered;
  Status (*run)(Transport& transport, const AllreduceArgs& args);  // blocks
  double (*cost_us)(const LinkModel& link, int size, int64_t bytes);
};

// Every algorithm works for every size ≥ 1, count ≥ 0, dtype and op.
std::span<const AllreduceAlgorithm> AllreduceAlgorithms();
const AllreduceAlgorithm* FindAllreduceAlgorithm(std::string_view name);  // nullptr: unknown

// The cheapest by `link`; a pure function of arguments that are equal on all ranks.
const AllreduceAlgorithm& ChooseAllreduceAlgorithm(const LinkModel& link, int size, int64_t bytes,
                                                   DType dtype, bool must_be_rank_ordered);

}  // namespace rabit
