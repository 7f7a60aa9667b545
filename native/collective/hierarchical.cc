// Hierarchical allreduce: ranks of one host reduce among themselves, ranks with the same position
// on every host reduce across the hosts, and each host gathers the result.
#include <algorithm>
#include <vector>

#include "base/group.h"
#include "collective/algorithms.h"
#include "collective/allgather.h"
#include "collective/chunks.h"
#include "collective/direct.h"
#include "transport/group_transport.h"

namespace rabit {
namespace {

constexpr Tag kCrossTag = 16;
constexpr Tag kGatherTag = 128;

struct Neighbourhood {
  Group local;     // ranks of this host
  Group cross;     // ranks with this position on every host; empty if some host is smaller
  int shares = 0;  // ranks of the smallest host: so many parts are reduced across
};

Neighbourhood FindNeighbours(std::span<const int> host_of, int rank) {
  const int size = static_cast<int>(host_of.size());
  std::vector<int> position(host_of.size());
  std::vector<int> host_size(host_of.size(), 0);  // by host number, which is below size
  std::vector<int> hosts;
  for (int r = 0; r < size; ++r) {
    int h = 0;  // hosts of a group need not be numbered from 0
    while (h < static_cast<int>(hosts.size()) && hosts[static_cast<size_t>(h)] != host_of[r]) ++h;
    if (h == static_cast<int>(hosts.size())) hosts.push_back(host_of[r]);
    position[static_cast<size_t>(r)] = host_size[static_cast<size_t>(h)]++;
  }
  Neighbourhood found;
  found.shares =
      *std::min_element(host_size.begin(), host_size.begin() + static_cast<int64_t>(hosts.size()));
  const int mine = position[static_cast<size_t>(rank)];
  for (int r = 0; r < size; ++r) {
    if (host_of[r] == host_of[rank]) found.local.ranks.push_back(r);
    if (position[static_cast<size_t>(r)] == mine && mine < found.shares) {
      found.cross.ranks.push_back(r);
    }
  }
  found.local.my_index = found.local.IndexOf(rank);
  found.cross.my_index = found.cross.IndexOf(rank);
  return found;
}

}  // namespace

Status RunHierarchical(const CollectiveCall& call, const AllreduceArgs& args) {
  if (args.host_of.empty()) return RunDirect(call, args);
  if (static_cast<int>(args.host_of.size()) != call.size()) {
    return Internal("hierarchical allreduce on rank " + std::to_string(call.rank()) +
                    ": the host is known of " + std::to_string(args.host_of.size()) +
                    " ranks, but the group has " + std::to_string(call.size()));
  }
  const Neighbourhood found = FindNeighbours(args.host_of, call.rank());
  const int local_size = found.local.size();
  const Elements elements(args.buffer);
  // Ranks beyond the smallest host's size own nothing.
  std::vector<int64_t> offsets;
  std::vector<int64_t> part_bytes;
  for (int i = 0; i < local_size; ++i) {
    const Range part = i < found.shares ? PartOf({0, args.buffer.count}, found.shares, i)
                                        : Range{args.buffer.count, args.buffer.count};
    offsets.push_back(part.begin);
    part_bytes.push_back(elements.BytesIn(part.count()));
  }
  offsets.push_back(args.buffer.count);
  const size_t index = static_cast<size_t>(found.local.my_index);
  const Range mine{offsets[index], offsets[index + 1]};

  GroupTransport local(call.transport, found.local);
  const CollectiveCall local_call{local, call.tag, call.deadline, call.scratch};
  RABIT_RETURN_IF_ERROR(ReduceByOwners(local_call, {.in = elements.At(0),
                                                    .out = elements.At(mine.begin),
                                                    .part_offsets = offsets,
                                                    .dtype = args.buffer.dtype,
                                                    .op = args.op}));
  if (found.cross.size() > 1 && !mine.empty()) {
    GroupTransport cross(call.transport, found.cross);
    AllreduceArgs part = args;
    part.buffer.data = elements.At(mine.begin);
    part.buffer.count = mine.count();
    part.host_of = {};
    RABIT_RETURN_IF_ERROR(
        RunDirect({cross, call.tag + kCrossTag, call.deadline, call.scratch}, part));
  }
  return Allgather({local, call.tag + kGatherTag, call.deadline, call.scratch}, elements.In(mine),
                   elements.In({0, args.buffer.count}), part_bytes, AllgatherAlgorithm::kDirect);
}

}  // namespace rabit
