// CarriedData: the inputs of a small collective that came with its announcements.
#pragma once

#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "base/kind.h"
#include "base/status.h"
#include "control/agreement.h"

namespace rabit {

// Whether `data` may be what a rank brings to the collective that it describes as `signature`.
Status CheckCarried(const Signature& signature, ConstBytes data);
// Whether the data of `ready` may be what rank 0 makes of it for a group of `size` ranks.
Status CheckCarriedResult(const ReadyTensor& ready, int size);

// Of one round; every input has passed CheckCarried with signatures that agree.
class CarriedData {
 public:
  // Once for each of those who bring data; `member` counts from 0.
  void Add(size_t member, size_t members, ConstBytes data);
  // All have brought theirs, and it is not too much: for one reduction, or for an agreement.
  bool IsComplete(Carried carried) const;
  // In the order of the members, so that a reduction has the bits of the algorithms in rank order.
  // It is finished here: an average is divided before it is rounded to its type.
  std::vector<std::byte> Result(const Signature& signature) const;

 private:
  struct Input {
    size_t begin = 0;
    size_t bytes = 0;
  };

  std::vector<std::byte> bytes_;  // as they came
  std::vector<Input> inputs_;     // by member
  size_t added_ = 0;
};

}  // namespace rabit
