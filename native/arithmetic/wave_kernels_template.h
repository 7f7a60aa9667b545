// The loops of WaveKernels, compiled once for each instruction set.  Included by wave_kernels_*.cc
// only.
#pragma once

#include <cstdint>

#include "arithmetic/wave_kernels.h"

namespace rabit {
namespace {

constexpr int kColumns = 64;  // sums that stay in registers

void Combine(const float* factors, const float* rows, int32_t count, float* to) {
  int32_t j = 0;
  for (; j + kColumns <= count; j += kColumns) {
    float sums[kColumns] = {};
    const float* row = rows + j;
    for (int32_t i = 0; i < count; ++i, row += count) {
      for (int k = 0; k < kColumns; ++k) sums[k] += factors[i] * row[k];
    }
    for (int k = 0; k < kColumns; ++k) to[j + k] = sums[k];
  }
  for (; j < count; ++j) {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += factors[i] * rows[i * count + j];
    to[j] = sum;
  }
}

void Add(float factor, const float* row, int32_t count, float* to) {
  for (int32_t j = 0; j < count; ++j) to[j] += factor * row[j];
}

void Signs(float* x, int32_t count) {
  for (int32_t j = 0; j < count; ++j) {
    const float sign = (x[j] > 0 ? 1.0f : 0.0f) - (x[j] < 0 ? 1.0f : 0.0f);
    x[j] = sign + (x[j] - x[j]);
  }
}

// By halves: some ten passes, without a branch that depends on one element.
int32_t Threshold(const float* x, int32_t count, int32_t kept) {
  int32_t low = 0;
  for (int32_t step = 1 << 30; step > 0; step >>= 1) {
    const int32_t tried = low + step;
    int32_t reached = 0;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t bits = __builtin_bit_cast(int32_t, x[i]) & 0x7fffffff;
      reached += bits >= tried ? 1 : 0;
    }
    if (reached < kept) continue;
    low = tried;
    if (reached == kept) break;
  }
  return low;
}

constexpr WaveKernels kWaveKernels = {Combine, Add, Signs, Threshold};

}  // namespace
}  // namespace rabit
