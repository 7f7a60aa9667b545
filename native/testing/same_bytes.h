// Whether two buffers hold the same bytes.
#pragma once

#include <cstring>

#include "base/bytes.h"

namespace rabit::testing {

// One memcmp: operator== of vectors looks at every byte by itself, which a sanitizer checks each
// time.
inline bool SameBytes(ConstBytes a, ConstBytes b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace rabit::testing
