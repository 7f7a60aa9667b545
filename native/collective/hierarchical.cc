// Hierarchical allreduce: ranks of one host reduce among themselves, ranks with the same position
// on every host reduce across the hosts, and each host gathers the result.
#include <vector>

#include "arithmetic/reduce.h"
#include "collective/algorithms.h"
#include "collective/allgather.h"
#include "collective/chunks.h"
#include "collective/direct.h"
#include "collective/neighbourhood.h"
#include "transport/group_transport.h"

namespace rabit {
namespace {

constexpr Tag kCrossTag = 16;
constexpr Tag kGatherTag = 128;

}  // namespace

Status RunHierarchical(const CollectiveCall& call, const AllreduceArgs& args) {
  if (args.host_of.empty()) return RunDirect(call, args);
  if (static_cast<int>(args.host_of.size()) != call.size()) {
    return Internal("hierarchical allreduce on rank " + std::to_string(call.rank()) +
                    ": the host is known of " + std::to_string(args.host_of.size()) +
                    " ranks, but the group has " + std::to_string(call.size()));
  }
  const Neighbourhood found = FindNeighbourhood(args.host_of, call.rank());
  const Elements elements(args.buffer);
  const std::vector<Range> parts = found.PartsOf({0, args.buffer.count});
  const Range mine = parts[static_cast<size_t>(found.local.my_index)];
  std::vector<int64_t> offsets;
  std::vector<int64_t> part_bytes;
  for (const Range& part : parts) {
    offsets.push_back(part.begin);
    part_bytes.push_back(elements.BytesIn(part.count()));
  }
  offsets.push_back(args.buffer.count);

  GroupTransport local(call.transport, found.local);
  const CollectiveCall local_call{local, call.tag, call.deadline, call.scratch};
  RABIT_RETURN_IF_ERROR(ReduceByOwners(local_call, {.in = elements.At(0),
                                                    .out = elements.At(mine.begin),
                                                    .part_offsets = offsets,
                                                    .dtype = args.buffer.dtype,
                                                    .op = args.op}));
  if (found.across.size() == 1) {
    ApplyEpilogue(args.epilogue, args.buffer.dtype, elements.At(mine.begin), mine.count());
  } else if (!mine.empty()) {
    GroupTransport across(call.transport, found.across);
    AllreduceArgs part = args;
    part.buffer.data = elements.At(mine.begin);
    part.buffer.count = mine.count();
    part.host_of = {};
    RABIT_RETURN_IF_ERROR(
        RunDirect({across, call.tag + kCrossTag, call.deadline, call.scratch}, part));
  }
  return Allgather({local, call.tag + kGatherTag, call.deadline, call.scratch}, elements.In(mine),
                   elements.In({0, args.buffer.count}), part_bytes, AllgatherAlgorithm::kDirect);
}

}  // namespace rabit
