// ParameterStore: parameters that live on a server while workers update them whenever they are ready.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "backend/ps/ps_wire.h"
#include "base/bytes.h"
#include "base/mutex.h"
#include "base/status.h"

namespace rabit {

// What a worker says of its steps.
struct StepClock {
  int64_t step = 0;  // that it has finished since it began; below 0: it takes part no more
  bool is_question = false;  // it has said so before
};

// A server's part of each tensor, by key, and how far the workers are.  Thread-safe; nobody waits.
class ParameterStore {
 public:
  explicit ParameterStore(int workers) : workers_(static_cast<size_t>(workers)) {}

  // Of the elements from `begin` on: adds `values` to what is kept (kAdd), or keeps them if nothing is
  // yet (kFill); `values` is then what is kept.  kInvalidArgument: it does not fit what is kept.
  Status Update(const PushHeader& header, int64_t begin, Bytes values);
  // `values` is then what is kept; the elements have been filled.  kInvalidArgument: they were not.
  Status Read(const PushHeader& header, int64_t begin, Bytes values);

  // How many steps the worker is ahead of the slowest one.  Every worker takes part from step 0 on,
  // before it is heard of: one that is slow to start is slow.  `key`: of the parameters, whose steps
  // have a clock of their own.
  int64_t Advance(uint64_t key, int worker, const StepClock& clock);

 private:
  struct Kept {
    DType dtype = DType::kFloat32;
    int64_t filled = 0;  // elements, from the first on
    std::vector<std::byte> values;
  };
  struct Clock {
    bool has_left = false;
    int64_t step = 0;
  };

  static int64_t Slowest(const std::vector<Clock>& clocks);

  const size_t workers_;
  Mutex mutex_;
  std::map<uint64_t, Kept> kept_ RABIT_GUARDED_BY(mutex_);
  std::map<uint64_t, std::vector<Clock>> clocks_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit
