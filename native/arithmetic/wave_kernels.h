// The table of loops over chunks of frequencies that one instruction set offers.  Every set gives
// the same bits.
#pragma once

#include <cstdint>

namespace rabit {

// Raw pointers only; see kernels.h.
struct WaveKernels {
  // to[j] = the sum of factors[i] * row i, of `count` rows of `count` elements.
  void (*combine)(const float* factors, const float* rows, int32_t count, float* to);
  // to += factor * row.
  void (*add)(float factor, const float* row, int32_t count, float* to);
  // -1, 0 or 1; NaN for what is not finite.
  void (*signs)(float* x, int32_t count);
  // The largest bits of a magnitude that `kept` elements or more reach, or smaller ones that
  // exactly so many reach.
  int32_t (*threshold)(const float* x, int32_t count, int32_t kept);
};

// nullptr where the compiler cannot build them for this processor family.
const WaveKernels* PortableWaveKernels();
const WaveKernels* Avx2WaveKernels();

// What this processor runs fastest.
const WaveKernels& BestWaveKernels();

}  // namespace rabit
