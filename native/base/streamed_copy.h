// StreamedCopy: a copy that leaves the caches alone.
#pragma once

#include <cstddef>

#include "base/bytes.h"

namespace rabit {

// Whether StreamedCopy does more than memcpy on this kind of processor.
#if defined(__SSE2__)
inline constexpr bool kHasStreamedCopy = true;
#else
inline constexpr bool kHasStreamedCopy = false;
#endif

// Copies `from` to memory by stores that fetch no line of it and leave none of it in a cache of
// this core.  Whoever sees a later store of this thread sees all of it.  The two do not overlap.
void StreamedCopy(std::byte* to, ConstBytes from);

}  // namespace rabit
