// Prints what scheduling a step costs: microseconds per step, partitions and buckets.
// Usage: bench_schedule [tensors, default 1000]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "schedule/fifo_scheduler.h"
#include "schedule/priority_scheduler.h"

namespace rabit {
namespace {

std::vector<ScheduledTensor> Gradients(int tensors, int64_t count) {
  std::vector<ScheduledTensor> ready(static_cast<size_t>(tensors));
  for (int i = 0; i < tensors; ++i) {
    ready[static_cast<size_t>(i)].id = i;
    ready[static_cast<size_t>(i)].count = count;
    ready[static_cast<size_t>(i)].priority = i;  // the last gradient is needed first
  }
  return ready;
}

void Bench(const char* name, std::unique_ptr<Scheduler> (*make)(const ScheduleLimits&),
           const ScheduleLimits& limits, const std::vector<ScheduledTensor>& ready) {
  const auto scheduler = make(limits);
  std::vector<double> micros;
  uint64_t done = 0;
  size_t buckets_per_step = 0;
  for (int step = 0; step < 31; ++step) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<Bucket> buckets = scheduler->Advance(ready, done);
    const uint64_t first = done;
    done += buckets.size();
    while (scheduler->backlog() > 0) done += scheduler->Advance({}, done).size();
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
    buckets_per_step = done - first;
  }
  std::nth_element(micros.begin(), micros.begin() + 15, micros.end());
  std::printf("%-8s %5zu tensors of %8lld B  credit %9lld B  %6zu buckets  %9.1f us per step\n",
              name, ready.size(), static_cast<long long>(ready[0].count * 4),
              static_cast<long long>(limits.credit_bytes), buckets_per_step, micros[15]);
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) {
  const int tensors = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 1000;
  for (const int64_t count : {256, 1 << 20}) {
    const auto ready = rabit::Gradients(tensors, count);
    for (const int64_t credit : {0, 8 << 20}) {
      rabit::ScheduleLimits limits;
      limits.partition_bytes = 1 << 20;
      limits.fusion_bytes = 4 << 20;
      limits.credit_bytes = credit;
      rabit::Bench("fifo", &rabit::MakeFifoScheduler, limits, ready);
      rabit::Bench("priority", &rabit::MakePriorityScheduler, limits, ready);
    }
  }
  return 0;
}
