// Prints what a negotiated step costs the control plane: CPU of rank 0 and of one other rank, and
// bytes each way, for a first and for a steady step.  All ranks live in one thread.
// Usage: bench_control [tensors, default 1000] [largest number of ranks, default 256]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "control/announcer.h"
#include "control/coordinator.h"

namespace rabit {
namespace {

using Clock = std::chrono::steady_clock;

double Micros(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

struct Cost {
  double root_us = 0;   // coordinator: every rank's message read and answered
  double rank_us = 0;   // one rank: announcement written, agreement read
  size_t up_bytes = 0;  // one rank
  size_t down_bytes = 0;
};

Announcement Gradients(int first, int count) {
  Announcement announcement;
  for (int i = first; i < first + count; ++i) {
    Announcement::Entry entry;
    entry.name = "module.layer" + std::to_string(i) + ".weight";
    entry.signature.shape = {64, 4};
    entry.signature.priority = -i;
    announcement.ready.push_back(std::move(entry));
  }
  return announcement;
}

class Job {
 public:
  explicit Job(int size) : coordinator_(Options(size)) {
    for (int rank = 0; rank < size; ++rank) announcers_.emplace_back(rank, size);
  }

  Cost Step(const Announcement& mine) {
    Cost cost;
    std::vector<std::vector<std::byte>> up(announcers_.size());
    auto start = Clock::now();
    for (size_t rank = 0; rank < up.size(); ++rank)
      Encode(announcers_[rank].Prepare(mine, 0), up[rank]);
    cost.rank_us = Micros(Clock::now() - start);
    cost.up_bytes = up[0].size();

    std::vector<std::byte> down;
    start = Clock::now();
    for (size_t rank = 0; rank < up.size(); ++rank) {
      coordinator_.OnMessage(static_cast<int>(rank), up[rank], ++now_us_);
      if (const auto agreement = coordinator_.TakeAgreement()) Encode(*agreement, down);
    }
    cost.root_us = Micros(Clock::now() - start);
    cost.down_bytes = down.size();

    start = Clock::now();
    for (Announcer& announcer : announcers_) {
      const auto agreement = announcer.Apply(*DecodeAgree(down));
      if (!agreement.ok() || agreement->ready.size() != mine.ready.size()) std::abort();
    }
    cost.rank_us += Micros(Clock::now() - start);
    cost.rank_us /= static_cast<double>(announcers_.size());
    return cost;
  }

 private:
  static CoordinatorOptions Options(int size) {
    CoordinatorOptions options;
    options.size = size;
    return options;
  }

  Coordinator coordinator_;
  std::vector<Announcer> announcers_;
  int64_t now_us_ = 0;
};

Cost MedianStep(Job& job, const Announcement& mine) {
  std::vector<Cost> costs;
  for (int i = 0; i < 15; ++i) costs.push_back(job.Step(mine));
  std::sort(costs.begin(), costs.end(),
            [](const Cost& a, const Cost& b) { return a.root_us < b.root_us; });
  return costs[costs.size() / 2];
}

void Print(const char* what, int size, int tensors, const Cost& cost) {
  std::printf(
      "%5d ranks %5d tensors  %-6s  rank 0 %9.1f us  a rank %8.1f us  up %6zu B  down %6zu B\n",
      size, tensors, what, cost.root_us, cost.rank_us, cost.up_bytes, cost.down_bytes);
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) {
  const int tensors = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 1000;
  const int size_max = argc > 2 ? std::clamp(std::atoi(argv[2]), 2, 4096) : 256;
  for (int size = 2; size <= size_max; size *= size < 8 ? 2 : 4) {
    rabit::Job job(size);
    const rabit::Announcement all = rabit::Gradients(0, tensors);
    const rabit::Announcement one = rabit::Gradients(0, 1);
    rabit::Print("first", size, tensors, job.Step(all));
    rabit::Print("steady", size, tensors, rabit::MedianStep(job, all));
    rabit::Print("steady", size, 1, rabit::MedianStep(job, one));
  }
  return 0;
}
