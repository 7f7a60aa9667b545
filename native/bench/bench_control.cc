// Prints what agreeing on a step costs, for jobs of 64 to 4,096 ranks in one thread: messages and
// bytes, in and out, of the busiest rank and of an ordinary one, and CPU of rank 0 and of the
// busiest rank between, for a first and for a steady step.
//
// The coordinator and the combiners are those of a job, and so is every byte; ranks without others
// below them all say the same, so that one announcer stands for them, and one combiner for all the
// ranks that have only such ranks below.  Horovod is its published design by arithmetic: first the
// sizes and the requests of every rank to rank 0 and its answer by broadcast; afterwards, every
// millisecond, one reduction of a bit for each tensor by recursive doubling.
//
// The last lines are one blocking allreduce that is negotiated with its data, by the star.
//
// Usage: bench_control [tensors, default 10,100,1000,10000] [largest number of ranks, default 4096]
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "control/announcer.h"
#include "control/combiner.h"
#include "control/coordinator.h"

namespace rabit {
namespace {

using Clock = std::chrono::steady_clock;
using Buffer = std::vector<std::byte>;

constexpr int kRanksPerHost = 8;
constexpr int kFanOut = 8;
constexpr int kSteadySteps = 5;

double Micros(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

struct Traffic {
  size_t messages = 0;
  size_t bytes = 0;
};

struct Cost {
  Traffic busiest;
  Traffic leaf;
  double root_us = 0;   // rank 0: every message read, the agreement written
  double inner_us = 0;  // the busiest rank between
};

Announcement Gradients(int count) {
  Announcement announcement;
  for (int i = 0; i < count; ++i) {
    Announcement::Entry entry;
    entry.name = "module.layer" + std::to_string(i) + ".weight";
    entry.signature.shape = {64, 4};
    entry.signature.priority = -i;
    announcement.ready.push_back(std::move(entry));
  }
  return announcement;
}

RankTree TreeOf(int size) {
  Topology topology;
  for (int rank = 0; rank < size; ++rank) topology.host_of.push_back(rank / kRanksPerHost);
  return RankTree::Over(topology, kFanOut);
}

class Job {
 public:
  Job(int size, const RankTree& tree)
      : tree_(tree), coordinator_({.size = size}), announcer_(size - 1, size) {
    for (int child : tree_.children(0)) below_[child] = RankSet(tree_.Subtree(child));
    size_t most = 0;
    for (int rank = size - 1; rank > 0; --rank) {
      if (tree_.is_leaf(rank)) continue;
      int& twin = twins_.try_emplace(ShapeOf(rank), rank).first->second;
      if (HasInner(rank)) twin = rank;  // stands for itself
      if (twin == rank) combiners_[rank] = std::make_unique<Combiner>(rank, tree_, 1'000'000);
      if (tree_.children(rank).size() > most) {
        most = tree_.children(rank).size();
        busiest_ = rank;
      }
    }
  }

  Cost Step(const Announcement& mine) {
    ++now_us_;
    const AnnounceMessage said = announcer_.Prepare(mine, now_us_);
    Buffer leaf;
    Encode(said, leaf);
    Cost cost;
    std::map<int, Buffer> up;
    for (auto& [rank, combiner] : combiners_)
      up[rank] = Combine(rank, *combiner, said, leaf, up, cost);
    const auto start = Clock::now();
    coordinator_.OnAnnounce(0, said, now_us_);
    Traffic root;
    for (int child : tree_.children(0)) {
      const Buffer message = tree_.is_leaf(child) ? leaf : MessageOf(child, up);
      ++root.messages;
      root.bytes += message.size();
      if (tree_.is_leaf(child)) {
        coordinator_.OnMessage(child, message, now_us_);
      } else {
        coordinator_.OnBundle(child, below_.at(child), message, now_us_);
      }
    }
    const auto agreed = coordinator_.TakeAgreement();
    Buffer down;
    if (agreed) Encode(*agreed, down);
    cost.root_us = Micros(Clock::now() - start);
    if (!agreed || !coordinator_.failure().ok()) Fail("no agreement");
    root.messages += tree_.children(0).size();
    root.bytes += tree_.children(0).size() * down.size();
    cost.leaf = {2, leaf.size() + down.size()};
    cost.busiest = root;
    for (const auto& [rank, message] : up) {
      Traffic traffic{1 + 1, message.size() + down.size()};
      for (int child : tree_.children(rank)) {
        traffic.messages += 2;
        traffic.bytes += down.size();
        traffic.bytes += tree_.is_leaf(child) ? leaf.size() : MessageOf(child, up).size();
      }
      if (traffic.bytes > cost.busiest.bytes) cost.busiest.bytes = traffic.bytes;
      if (traffic.messages > cost.busiest.messages) cost.busiest.messages = traffic.messages;
    }
    for (auto& [rank, combiner] : combiners_) combiner->OnAgreement(*DecodeAgree(down));
    const auto applied = announcer_.Apply(*DecodeAgree(down));
    if (!applied.ok() || applied->ready.size() != mine.ready.size())
      Fail("an incomplete agreement");
    return cost;
  }

 private:
  static void Fail(const char* what) {
    std::fprintf(stderr, "bench_control: %s\n", what);
    std::exit(1);
  }
  bool HasInner(int rank) const {
    const std::vector<int>& children = tree_.children(rank);
    return std::any_of(children.begin(), children.end(),
                       [this](int child) { return !tree_.is_leaf(child); });
  }
  int ShapeOf(int rank) const {
    return HasInner(rank) ? -rank : static_cast<int>(tree_.children(rank).size());
  }

  Buffer Combine(int rank, Combiner& combiner, const AnnounceMessage& said, const Buffer& leaf,
                 const std::map<int, Buffer>& up, Cost& cost) {
    Buffer message;
    const auto start = Clock::now();
    combiner.OnOwn(said, now_us_);
    for (int child : tree_.children(rank)) {
      if (combiner.TakeUp(message)) Fail("a message before all have spoken");
      const Status heard =
          combiner.OnMessage(child, tree_.is_leaf(child) ? leaf : MessageOf(child, up), now_us_);
      if (!heard.ok()) Fail(heard.message().c_str());
    }
    if (!combiner.TakeUp(message)) Fail("nothing for the parent");
    if (rank == busiest_) cost.inner_us = Micros(Clock::now() - start);
    return message;
  }

  // Its own, or its twin's with the name of the rank that spoke last.
  Buffer MessageOf(int rank, const std::map<int, Buffer>& up) const {
    if (const auto own = up.find(rank); own != up.end()) return own->second;
    BundleMessage bundle = *DecodeBundle(up.at(twins_.at(ShapeOf(rank))));
    for (BundlePart& part : bundle.parts) part.last_rank = rank;
    Buffer message;
    Encode(bundle, message);
    return message;
  }

  const RankTree tree_;
  Coordinator coordinator_;
  Announcer announcer_;
  std::map<int, RankSet> below_;
  std::map<int, int> twins_;                                               // by shape
  std::map<int, std::unique_ptr<Combiner>, std::greater<int>> combiners_;  // children first
  int busiest_ = -1;
  int64_t now_us_ = 0;
};

void Print(const char* design, const char* step, int ranks, int tensors, const Cost& cost) {
  std::printf("%5d ranks %6d tensors  %-8s %-7s %7zu messages %12zu B   a rank %9zu B", ranks,
              tensors, design, step, cost.busiest.messages, cost.busiest.bytes, cost.leaf.bytes);
  if (cost.root_us > 0) std::printf("   rank 0 %9.0f us", cost.root_us);
  if (cost.inner_us > 0) std::printf("   between %7.0f us", cost.inner_us);
  std::printf("\n");
  std::fflush(stdout);
}

void Measure(const char* design, const RankTree& tree, int ranks, const Announcement& mine) {
  const int tensors = static_cast<int>(mine.ready.size());
  Job job(ranks, tree);
  Print(design, "first", ranks, tensors, job.Step(mine));
  std::vector<Cost> costs;
  for (int i = 0; i < kSteadySteps; ++i) costs.push_back(job.Step(mine));
  std::sort(costs.begin(), costs.end(),
            [](const Cost& a, const Cost& b) { return a.root_us < b.root_us; });
  Print(design, "steady", ranks, tensors, costs[costs.size() / 2]);
}

Announcement WithData(int64_t bytes) {
  Announcement announcement = Gradients(1);
  announcement.ready[0].signature.shape = {bytes / 4};
  announcement.ready[0].data.resize(static_cast<size_t>(bytes));
  return announcement;
}

// A steady line is one cycle; there is one every millisecond.
void PrintHorovod(int ranks, const Announcement& mine) {
  const auto others = static_cast<size_t>(ranks - 1);
  const auto rounds = static_cast<size_t>(std::bit_width(static_cast<unsigned>(ranks - 1)));
  const int tensors = static_cast<int>(mine.ready.size());
  AnnounceMessage requests;
  requests.full = mine.ready;
  Buffer list;
  Encode(requests, list);  // ours; theirs says as much
  Cost first;
  first.busiest = {2 * others + 2 * rounds, others * (list.size() + 4) + 2 * rounds * list.size()};
  first.leaf = {2 + 2, 2 * list.size() + 8};
  Print("horovod", "first", ranks, tensors, first);
  const size_t bits = static_cast<size_t>(tensors + 3) / 8 + 1;
  Cost cycle;
  cycle.busiest = cycle.leaf = {2 * rounds, 2 * rounds * bits};
  Print("horovod", "a cycle", ranks, tensors, cycle);
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) {
  const std::string list = argc > 1 ? argv[1] : "10,100,1000,10000";
  const int size_max = argc > 2 ? std::clamp(std::atoi(argv[2]), 64, 4096) : 4096;
  std::printf("messages and bytes: in and out, of the busiest rank\n");
  for (size_t at = 0; at < list.size(); at = list.find(',', at) + 1) {
    const int tensors = std::max(std::atoi(list.c_str() + at), 1);
    const rabit::Announcement mine = rabit::Gradients(tensors);
    for (int size = 64; size <= size_max; size *= 4) {
      // Reading every rank's full announcement is minutes of work beyond this.
      if (static_cast<int64_t>(size) * tensors <= 42'000'000)
        rabit::Measure("star", rabit::RankTree::Star(size), size, mine);
      rabit::Measure("tree", rabit::TreeOf(size), size, mine);
      rabit::PrintHorovod(size, mine);
    }
    if (list.find(',', at) == std::string::npos) break;
  }
  for (const int64_t bytes : {8, 256}) {
    std::printf("with %lld bytes of data:\n", static_cast<long long>(bytes));
    for (int size = 64; size <= std::min(size_max, 1024); size *= 4)
      rabit::Measure("star", rabit::RankTree::Star(size), size, rabit::WithData(bytes));
  }
  return 0;
}
