// Chunks of an array as waves of an orthonormal basis, and the strongest of them.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace rabit {

// Of an array of `chunks` rows of `chunk` elements.
struct WaveShape {
  int64_t chunks = 0;
  int32_t chunk = 1;
  int32_t kept = 1;  // waves of each chunk, up to `chunk`
};

// The strongest waves of each chunk, in order of their place; of equal ones the first.
// basis: a wave in each row; transposed: in each column.  places, values: `chunks` by `kept`.
// sent: what these amount to, `chunks` by `chunk`.
void SplitWaves(WaveShape shape, const float* basis, const float* transposed, const float* x,
                uint16_t* places, float* values, float* sent);

// The mean of each wave over the ranks that have sent it, as an array; signs: its signs, NaN where
// it is not finite. places, values: `ranks` by `chunks` by `kept`, of other ranks: kInvalidArgument
// for a place that there is not.
Status MeanOfWaves(WaveShape shape, int32_t ranks, const float* basis, const uint16_t* places,
                   const float* values, bool signs, float* mean);

}  // namespace rabit
