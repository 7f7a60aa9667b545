#include "collective/flow_rates.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "collective/allgather.h"
#include "collective/barrier.h"
#include "transport/operation_slots.h"

namespace rabit {
namespace {

constexpr int64_t kFlowFirstBytes = 96 << 10;
constexpr int64_t kFlowBytesMax = 64 << 20;
// A round that takes so many times as long as wanted is not repeated: on slow links a busy moment
// makes less of a difference.
constexpr double kFlowLong = 2;
// Nor is one that takes so long; between them, one that takes this many times as long as its first
// bytes have said is, because the machine was busy.
constexpr double kFlowTooLong = 6, kFlowUnexpected = 2;
// Below this a longer message does not take longer: the network is not what limits it.
constexpr double kFlowLonger = 1.3;

enum FlowStep : uint64_t { kFlowBegin, kFlowData, kFlowEnd };

class FlowRound {
 public:
  FlowRound(const CollectiveCall& call, std::span<Flow> flows, std::vector<std::byte>& memory)
      : call_(call), flows_(flows), memory_(memory), bytes_(flows.size(), kFlowFirstBytes) {}

  Status Run(double round_seconds) {
    RABIT_RETURN_IF_ERROR(TimeFlows());
    const std::vector<double> first = seconds_;
    double longest = 0, expected = 0;
    for (size_t i = 0; i < flows_.size(); ++i) {
      const double wanted = static_cast<double>(kFlowFirstBytes) / first[i] * round_seconds;
      bytes_[i] =
          static_cast<int64_t>(std::clamp(wanted, 2.0 * kFlowFirstBytes, 1.0 * kFlowBytesMax));
      expected = std::max(expected, first[i] * static_cast<double>(bytes_[i]) / kFlowFirstBytes);
    }
    RABIT_RETURN_IF_ERROR(TimeFlows());
    const std::vector<double> once = seconds_;
    for (const double seconds : once) longest = std::max(longest, seconds);
    const bool was_busy =
        longest > kFlowUnexpected * expected && longest < kFlowTooLong * round_seconds;
    if (was_busy || longest < kFlowLong * round_seconds) RABIT_RETURN_IF_ERROR(TimeFlows());
    for (size_t i = 0; i < flows_.size(); ++i) {
      const double best = std::min(once[i], seconds_[i]);
      const double whole = static_cast<double>(bytes_[i]) / best;
      // Buffers on the way take the first bytes at once, so the rest tells more.  Where the machine
      // was busy meanwhile, the rest would seem faster than all of them.
      const double rest = static_cast<double>(bytes_[i] - kFlowFirstBytes) / (best - first[i]);
      flows_[i].bytes_per_second = best > kFlowLonger * first[i] ? std::min(rest, whole) : whole;
    }
    return Status();
  }

 private:
  CollectiveCall At(FlowStep step) const {
    return {call_.transport, call_.tag + (step << kTagStepBits), call_.deadline, call_.scratch};
  }

  // Has all flows send their bytes once; of each, `seconds_` is what the slower of its ends took
  // for all that it sends and receives.
  Status TimeFlows() {
    size_t sent = 0, received = 0;
    for (size_t i = 0; i < flows_.size(); ++i) {
      flows_[i].bytes += bytes_[i];
      if (flows_[i].from == call_.rank()) sent = std::max(sent, static_cast<size_t>(bytes_[i]));
      if (flows_[i].to == call_.rank()) received += static_cast<size_t>(bytes_[i]);
    }
    if (memory_.size() < sent + received) memory_.resize(sent + received);
    RABIT_RETURN_IF_ERROR(Barrier(At(kFlowBegin)));
    const auto begin = std::chrono::steady_clock::now();
    RABIT_RETURN_IF_ERROR(Exchange(sent));
    const std::chrono::duration<double> mine = std::chrono::steady_clock::now() - begin;
    const double taken = std::max(mine.count(), 1e-9);
    std::vector<double> all(static_cast<size_t>(call_.size()));
    const std::vector<int64_t> parts(all.size(), sizeof taken);
    RABIT_RETURN_IF_ERROR(Allgather(At(kFlowEnd), std::as_bytes(std::span(&taken, 1)),
                                    std::as_writable_bytes(std::span(all)), parts,
                                    AllgatherAlgorithm::kDirect));
    seconds_.clear();
    for (const Flow& flow : flows_) {
      seconds_.push_back(
          std::max(all[static_cast<size_t>(flow.from)], all[static_cast<size_t>(flow.to)]));
    }
    return Status();
  }

  // All sends read the first `sent` bytes of the memory.
  Status Exchange(size_t sent) {
    const CollectiveCall call = At(kFlowData);
    OperationSlots under_way(flows_.size());
    size_t at = sent;
    for (size_t i = 0; i < flows_.size(); ++i) {
      if (flows_[i].to != call.rank()) continue;
      const auto bytes = static_cast<size_t>(bytes_[i]);
      const Bytes into = Bytes(memory_).subspan(at, bytes);
      under_way.Start(i, call.transport.Recv(flows_[i].from, call.tag, into));
      at += bytes;
    }
    for (size_t i = 0; i < flows_.size(); ++i) {
      if (flows_[i].from != call.rank()) continue;
      const ConstBytes data = ConstBytes(memory_).first(static_cast<size_t>(bytes_[i]));
      under_way.Start(i, call.transport.Send(flows_[i].to, call.tag, data));
    }
    return under_way.WaitAll(call.deadline);
  }

  const CollectiveCall& call_;
  const std::span<Flow> flows_;
  std::vector<std::byte>& memory_;
  std::vector<int64_t> bytes_;   // by flow
  std::vector<double> seconds_;  // by flow
};

}  // namespace

Status MeasureFlows(const CollectiveCall& call, std::span<Flow> flows, double round_seconds) {
  int last = 0;
  for (const Flow& flow : flows) {
    if (std::min(flow.from, flow.to) < 0 || std::max(flow.from, flow.to) >= call.size() ||
        flow.from == flow.to || flow.round < last) {
      return InvalidArgument("a flow from rank " + std::to_string(flow.from) + " to rank " +
                             std::to_string(flow.to) + " in round " + std::to_string(flow.round) +
                             " cannot be measured among " + std::to_string(call.size()) +
                             " ranks; name two of them, and pass rounds in ascending order");
    }
    last = flow.round;
  }
  std::vector<std::byte> memory;
  for (size_t begin = 0, end = 0; begin < flows.size(); begin = end) {
    while (end < flows.size() && flows[end].round == flows[begin].round) ++end;
    FlowRound round(call, flows.subspan(begin, end - begin), memory);
    RABIT_RETURN_IF_ERROR(round.Run(round_seconds));
  }
  return Status();
}

}  // namespace rabit
