#include "backend/ps/parameter_store.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <string>

#include "arithmetic/reduce.h"

namespace rabit {
namespace {

// Between two looks of a wait that Fail and every worker's step end.
constexpr auto kLookAtClocks = std::chrono::hours(1);

}  // namespace

Status ParameterStore::Update(const PushHeader& header, int64_t begin, Bytes values) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(header.dtype));
  const int64_t count = static_cast<int64_t>(values.size()) / element_bytes;
  MutexLock lock(mutex_);
  Kept& kept = kept_[header.key];
  if (kept.values.empty()) {
    kept.dtype = header.dtype;
    kept.values.resize(static_cast<size_t>(header.count * element_bytes));
  }
  if (kept.dtype != header.dtype ||
      static_cast<int64_t>(kept.values.size()) != header.count * element_bytes) {
    return Internal("a worker updates " + std::to_string(header.count) +
                    " elements of a tensor of which " + std::to_string(kept.values.size()) +
                    " bytes are kept; give tensors of another size or type another name");
  }
  std::byte* const mine = kept.values.data() + begin * element_bytes;
  if (header.mode == PushMode::kAdd) {
    if (kept.filled < begin + count) {
      return Internal("a worker updates a tensor of which only " + std::to_string(kept.filled) +
                      " of " + std::to_string(header.count) + " elements were given; fill it first");
    }
    const std::array<const std::byte*, 2> both = {mine, values.data()};
    Reduce(ReduceOp::kSum, header.dtype, both, mine, count);
  } else if (kept.filled <= begin) {
    std::copy(values.begin(), values.end(), mine);
    kept.filled = begin + count;
  }
  std::copy_n(mine, values.size(), values.begin());
  return Status();
}

Status ParameterStore::Read(const PushHeader& header, int64_t begin, Bytes values) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(header.dtype));
  const int64_t end = begin + static_cast<int64_t>(values.size()) / element_bytes;
  MutexLock lock(mutex_);
  const auto found = kept_.find(header.key);
  if (found == kept_.end() || found->second.dtype != header.dtype || found->second.filled < end) {
    return Internal("elements until " + std::to_string(end) +
                    " of a tensor were updated, and are not kept; run the same version of rabit on "
                    "every worker and server");
  }
  std::copy_n(found->second.values.data() + begin * element_bytes, values.size(), values.begin());
  return Status();
}

int64_t ParameterStore::Slowest(const std::vector<Clock>& clocks) {
  int64_t slowest = std::numeric_limits<int64_t>::max();
  for (const Clock& clock : clocks) {
    if (!clock.has_left) slowest = std::min(slowest, clock.step);
  }
  return slowest;
}

std::vector<ParameterStore::Clock>& ParameterStore::Set(uint64_t key, int worker,
                                                        const StepClock& said) {
  std::vector<Clock>& clocks = clocks_[key];
  clocks.resize(workers_);
  clocks[static_cast<size_t>(worker)] = {said.step < 0, said.step};
  moved_.NotifyAll();
  return clocks;
}

void ParameterStore::Note(uint64_t key, int worker, const StepClock& said) {
  MutexLock lock(mutex_);
  Set(key, worker, said);
}

Status ParameterStore::Advance(uint64_t key, int worker, const StepClock& said,
                               StepLead& lead) {
  MutexLock lock(mutex_);
  const std::vector<Clock>& clocks = Set(key, worker, said);
  const Clock& mine = clocks[static_cast<size_t>(worker)];
  if (mine.has_left) return failure_;
  lead = {mine.step - Slowest(clocks), 0};
  while (said.staleness >= 0 && lead.ahead > said.staleness && failure_.ok()) {
    lead.waited = 1;
    moved_.WaitUntil(mutex_, After(kLookAtClocks));
    lead.ahead = mine.step - Slowest(clocks);
  }
  return failure_;
}

void ParameterStore::Fail(const Status& why) {
  MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = why;
  moved_.NotifyAll();
}

}  // namespace rabit
