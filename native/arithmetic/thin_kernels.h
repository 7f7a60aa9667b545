// The table of products of matrices with thin ones that one instruction set offers.  Every set
// gives the same bits.
#pragma once

#include <cstdint>

namespace rabit {

// Of a row-major matrix.
struct ThinShape {
  int64_t rows = 0;
  int64_t columns = 0;
  int32_t rank = 1;  // columns of the thin ones
};

// Raw pointers only; see kernels.h.  A left one has `rows` by `rank` elements, a right one is kept
// transposed: `rank` by `columns`.
struct ThinKernels {
  // whole = x + factor * residual, null: x;  left = whole * right.
  void (*times)(ThinShape shape, const float* x, const float* residual, float factor,
                const float* right, float* whole, float* left);
  // right = transposed whole * left.
  void (*transposed_times)(ThinShape shape, const float* whole, const float* left, float* right);
  // value = left * mean;  whole -= left * mine.
  void (*expand)(ThinShape shape, const float* left, const float* mean, const float* mine,
                 float* value, float* whole);
  double (*dot)(const double* a, const double* b, int64_t count);
};

// nullptr where the compiler cannot build them for this processor family.
const ThinKernels* PortableThinKernels();
const ThinKernels* Avx2ThinKernels();

// What this processor runs fastest.
const ThinKernels& BestThinKernels();

}  // namespace rabit
