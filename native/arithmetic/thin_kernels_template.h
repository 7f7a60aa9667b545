// The loops of ThinKernels, compiled once for each instruction set.  Included by thin_kernels_*.cc
// only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "arithmetic/thin_kernels.h"

namespace rabit {
namespace {

constexpr int64_t kTile = 1024;  // columns; what is read several times stays in the first cache
constexpr int kAtOnce = 4;       // columns of a thin matrix, or rows
constexpr int kThinLanes = 16;

// Strided lanes, which are then added in pairs.
template <int kCount>
void Dots(const float* row, const float* right, int64_t columns, float* to) {
  float sums[kCount][kThinLanes] = {};
  int64_t j = 0;
  for (; j + kThinLanes <= columns; j += kThinLanes) {
    for (int k = 0; k < kCount; ++k) {
      for (int i = 0; i < kThinLanes; ++i) sums[k][i] += row[j + i] * right[k * columns + j + i];
    }
  }
  for (int k = 0; k < kCount; ++k) {
    for (int i = 0; j + i < columns; ++i) sums[k][i] += row[j + i] * right[k * columns + j + i];
    for (int width = kThinLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) sums[k][i] += sums[k][i + width];
    }
    to[k] = sums[k][0];
  }
}

void Times(ThinShape shape, const float* x, const float* residual, float factor, const float* right,
           float* whole, float* left) {
  for (int64_t i = 0; i < shape.rows; ++i) {
    const float* const from = x + i * shape.columns;
    float* const row = whole + i * shape.columns;
    if (residual == nullptr) {
      std::memcpy(row, from, static_cast<size_t>(shape.columns) * sizeof(float));
    } else {
      const float* const rest = residual + i * shape.columns;
      for (int64_t j = 0; j < shape.columns; ++j) row[j] = from[j] + factor * rest[j];
    }
    float* const to = left + i * shape.rank;
    int32_t k = 0;
    for (; k + kAtOnce <= shape.rank; k += kAtOnce) {
      Dots<kAtOnce>(row, right + k * shape.columns, shape.columns, to + k);
    }
    for (; k + 2 <= shape.rank; k += 2) {
      Dots<2>(row, right + k * shape.columns, shape.columns, to + k);
    }
    if (k < shape.rank) Dots<1>(row, right + k * shape.columns, shape.columns, to + k);
  }
}

// to += Σ factors[i·stride] * row i, of kRows rows.
template <int kRows>
void AddRows(const float* rows, int64_t columns, const float* factors, int32_t stride,
             int64_t count, float* to) {
  float factor[kRows];
  for (int i = 0; i < kRows; ++i) factor[i] = factors[i * stride];
  for (int64_t j = 0; j < count; ++j) {
    float sum = factor[0] * rows[j];
    for (int i = 1; i < kRows; ++i) sum += factor[i] * rows[i * columns + j];
    to[j] += sum;
  }
}

void TransposedTimes(ThinShape shape, const float* whole, const float* left, float* right) {
  const int64_t columns = shape.columns;
  std::fill_n(right, shape.rank * columns, 0.0f);
  for (int64_t start = 0; start < columns; start += kTile) {
    const int64_t count = std::min(kTile, columns - start);
    int64_t i = 0;
    for (; i + kAtOnce <= shape.rows; i += kAtOnce) {
      for (int32_t k = 0; k < shape.rank; ++k) {
        AddRows<kAtOnce>(whole + i * columns + start, columns, left + i * shape.rank + k,
                         shape.rank, count, right + k * columns + start);
      }
    }
    for (; i < shape.rows; ++i) {
      for (int32_t k = 0; k < shape.rank; ++k) {
        AddRows<1>(whole + i * columns + start, columns, left + i * shape.rank + k, shape.rank,
                   count, right + k * columns + start);
      }
    }
  }
}

// kCount columns of the thin ones, from k on.
template <int kCount>
void ExpandRow(const float* left, const float* mean, const float* mine, int64_t columns,
               int64_t count, bool is_first, float* value, float* whole) {
  float factor[kCount];
  for (int k = 0; k < kCount; ++k) factor[k] = left[k];
  for (int64_t j = 0; j < count; ++j) {
    float of_all = factor[0] * mean[j], of_mine = factor[0] * mine[j];
    for (int k = 1; k < kCount; ++k) {
      of_all += factor[k] * mean[k * columns + j];
      of_mine += factor[k] * mine[k * columns + j];
    }
    value[j] = is_first ? of_all : value[j] + of_all;
    whole[j] -= of_mine;
  }
}

void Expand(ThinShape shape, const float* left, const float* mean, const float* mine, float* value,
            float* whole) {
  const int64_t columns = shape.columns;
  for (int64_t start = 0; start < columns; start += kTile) {
    const int64_t count = std::min(kTile, columns - start);
    for (int64_t i = 0; i < shape.rows; ++i) {
      const int64_t at = i * columns + start;
      int32_t k = 0;
      const auto expand = [&](auto expand_row) {
        expand_row(left + i * shape.rank + k, mean + k * columns + start,
                   mine + k * columns + start, columns, count, k == 0, value + at, whole + at);
      };
      for (; k + kAtOnce <= shape.rank; k += kAtOnce) expand(ExpandRow<kAtOnce>);
      for (; k + 2 <= shape.rank; k += 2) expand(ExpandRow<2>);
      if (k < shape.rank) expand(ExpandRow<1>);
    }
  }
}

double Dot(const double* a, const double* b, int64_t count) {
  double lanes[kThinLanes] = {};
  int64_t i = 0;
  for (; i + kThinLanes <= count; i += kThinLanes) {
    for (int j = 0; j < kThinLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  for (int j = 0; i + j < count; ++j) lanes[j] += a[i + j] * b[i + j];
  for (int width = kThinLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

constexpr ThinKernels kThinKernels = {Times, TransposedTimes, Expand, Dot};

}  // namespace
}  // namespace rabit
