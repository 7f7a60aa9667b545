// CarriedData: the inputs of a small allreduce that came with its announcements.
#pragma once

#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "control/agreement.h"

namespace rabit {

// Whether `data` may be the input or the result of the allreduce.  It came from another rank.
Status CheckCarried(const Signature& signature, ConstBytes data);

// Of one round; every input has passed CheckCarried with signatures that agree.
class CarriedData {
 public:
  // Once for each member, `member` counting from 0.
  void Add(size_t member, size_t members, ConstBytes data);
  // Every member has brought data, and there are not too many of them to reduce in one pass.
  bool IsComplete() const;
  // In the order of the members, so that the result has the bits of the algorithms in rank order.
  std::vector<std::byte> Reduce(const Signature& signature) const;

 private:
  std::vector<std::byte> inputs_;  // one after the other
  size_t bytes_ = 0;               // of one
  size_t members_ = 0;
  size_t added_ = 0;
};

}  // namespace rabit
