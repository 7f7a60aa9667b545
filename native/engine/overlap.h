// Whether two tensors share memory.
#pragma once

#include <functional>

#include "base/bytes.h"

namespace rabit {

inline bool Overlap(ConstBytes a, ConstBytes b) {
  const std::less<const std::byte*> is_before;  // of pointers into different memory as well
  return is_before(a.data(), b.data() + b.size()) && is_before(b.data(), a.data() + a.size());
}

}  // namespace rabit
