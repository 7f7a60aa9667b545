// LateSends: sends that nobody waits for before the end of a collective.
#pragma once

#include <utility>
#include <vector>

#include "base/operation.h"

namespace rabit {

// A rank that waits for each of its sends waits once more for each message: until its peer has
// said that it has arrived.  Destroying it cancels what is still in flight; declare it after the
// memory it uses.
class LateSends {
 public:
  void Add(Operation send) { sends_.push_back(std::move(send)); }

  Status Wait(Deadline deadline) {
    for (Operation& send : sends_) RABIT_RETURN_IF_ERROR(send.Wait(deadline));
    sends_.clear();
    return Status();
  }

 private:
  std::vector<Operation> sends_;
};

}  // namespace rabit
