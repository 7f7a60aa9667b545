// Allreduce algorithms: plain blocking functions over a Transport, and the table that names them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/epilogue.h"
#include "base/status.h"
#include "collective/call.h"
#include "collective/cost.h"

namespace rabit {

struct AllreduceArgs {
  TensorView buffer;  // reduced in place
  ReduceOp op = ReduceOp::kSum;
  // By rank of the transport; for algorithms that know hosts.  Empty: all on one host.
  std::span<const int> host_of;
  // Done once to every element.  An algorithm in rank order does it before it rounds the sum to the
  // type.  The others round at every step, so the router gives them no work that ends wide.
  Epilogue epilogue = {};
};

struct AllreduceAlgorithm {
  std::string_view name;     // "ring"
  std::string_view summary;  // "bandwidth-optimal; 2(n-1) steps"
  // Sums every element in rank order, whatever the size or offset of the buffer.
  bool is_rank_ordered;
  Status (*run)(const CollectiveCall& call, const AllreduceArgs& args);  // blocks
  double (*cost_us)(const LinkModel& link, int size, int64_t bytes);
  bool knows_hosts = false;  // reads `host_of`
};

// Every algorithm works for every size >= 1, count >= 0, dtype and op, and leaves the same bits on
// every rank.
std::span<const AllreduceAlgorithm> AllreduceAlgorithms();
const AllreduceAlgorithm* FindAllreduceAlgorithm(std::string_view name);  // nullptr: unknown

// The cheapest by `link`, of those in rank order if `is_rank_ordered`; a pure function of arguments
// that are equal on all ranks.
const AllreduceAlgorithm& ChooseAllreduceAlgorithm(const LinkModel& link, int size, int64_t bytes,
                                                   bool is_rank_ordered);

// Whether ranks that share no host pass so many bytes around a ring, where every link has one sender.
bool WantsRing(int size, int64_t bytes);

// Whether a reduction is for an algorithm that adds up at one place, in rank order: the others
// round 16-bit floats, and what is left of an average, at every step.
bool WantsRankOrder(DType dtype, ReduceOp op);

}  // namespace rabit
