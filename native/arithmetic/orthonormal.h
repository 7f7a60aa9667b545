// Orthonormal: columns of length one, at right angles to each other.
#pragma once

#include <cstdint>

namespace rabit {

// Makes the columns of a row-major matrix orthonormal; the first k span what they spanned before,
// as far as they were independent.  A column that is zero or depends on those before it becomes one
// that does not.  Bits are the same on every machine; what is not finite stays so.
// rank: at most `rows`.
void Orthonormalize(float* matrix, int64_t rows, int32_t rank);

}  // namespace rabit
