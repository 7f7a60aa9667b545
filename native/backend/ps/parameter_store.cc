#include "backend/ps/parameter_store.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "arithmetic/reduce.h"

namespace rabit {
Status ParameterStore::Update(const PushHeader& header, int64_t begin, Bytes values) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(header.dtype));
  const int64_t count = static_cast<int64_t>(values.size()) / element_bytes;
  const int64_t bytes = header.count * element_bytes;
  MutexLock lock(mutex_);
  const auto found = kept_.find(header.key);
  const bool is_new = found == kept_.end();
  if (is_new && header.mode == PushMode::kAdd) {
    return InvalidArgument("a worker updates a tensor that was not given; fill it first");
  }
  if (!is_new && (found->second.dtype != header.dtype ||
                  static_cast<int64_t>(found->second.values.size()) != bytes)) {
    return InvalidArgument("a worker updates " + std::to_string(header.count) +
                           " elements of a tensor of which " +
                           std::to_string(found->second.values.size()) +
                           " bytes are kept; give tensors of another size or type another name");
  }
  Kept& kept = kept_[header.key];
  if (is_new) {
    kept.dtype = header.dtype;
    kept.values.resize(static_cast<size_t>(bytes));
  }
  std::byte* const mine = kept.values.data() + begin * element_bytes;
  if (header.mode == PushMode::kAdd) {
    if (kept.filled < begin + count) {
      return InvalidArgument("a worker updates a tensor of which only " +
                             std::to_string(kept.filled) + " of " + std::to_string(header.count) +
                             " elements were given; fill it first");
    }
    const std::array<const std::byte*, 2> both = {mine, values.data()};
    Reduce(ReduceOp::kSum, header.dtype, both, mine, count);
  } else if (kept.filled <= begin) {
    std::copy(values.begin(), values.end(), mine);
    kept.filled = begin + count;
  }
  // Under the same lock as the update: the worker gets the value that its own update has made, with
  // no later one in it.
  std::copy_n(mine, values.size(), values.begin());
  return Status();
}

Status ParameterStore::Read(const PushHeader& header, int64_t begin, Bytes values) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(header.dtype));
  const int64_t end = begin + static_cast<int64_t>(values.size()) / element_bytes;
  MutexLock lock(mutex_);
  const auto found = kept_.find(header.key);
  if (found == kept_.end() || found->second.dtype != header.dtype || found->second.filled < end) {
    return InvalidArgument("elements until " + std::to_string(end) +
                           " of a tensor are wanted, and are not kept; fill it first");
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

int64_t ParameterStore::Advance(uint64_t key, int worker, const StepClock& said) {
  MutexLock lock(mutex_);
  std::vector<Clock>& clocks = clocks_[key];
  clocks.resize(workers_);
  Clock& mine = clocks[static_cast<size_t>(worker)];
  if (!said.is_question) mine = {said.step < 0, said.step};
  return mine.has_left ? 0 : mine.step - Slowest(clocks);
}

}  // namespace rabit
