#include "arithmetic/orthonormal.h"

#include <cmath>
#include <vector>

#include "arithmetic/thin_kernels.h"

namespace rabit {
namespace {

// What is left of a column, of what it was, if it depends on those before it: noise of the sums.
constexpr double kDependent = 1e-10;

// The columns one after the other, in double: Gram-Schmidt loses too much in float.
class Columns {
 public:
  Columns(const float* matrix, int64_t rows, int32_t rank)
      : rows_(static_cast<size_t>(rows)), values_(rows_ * static_cast<size_t>(rank)) {
    for (size_t i = 0; i < rows_; ++i) {
      for (size_t k = 0; k < static_cast<size_t>(rank); ++k) {
        values_[k * rows_ + i] = matrix[i * static_cast<size_t>(rank) + k];
      }
    }
  }

  void Normalize(size_t k) {
    const double before = Length(k);
    double length = LengthBeside(k);
    // Every rank has the same matrix and replaces the same columns; a random replacement would
    // differ between ranks.
    if (std::isfinite(before) && length <= kDependent * before) {
      Replace(k);
      length = LengthBeside(k);
    }
    double* const column = At(k);
    for (size_t i = 0; i < rows_; ++i) column[i] /= length;
  }

  double operator()(size_t i, size_t k) const { return values_[k * rows_ + i]; }

 private:
  double* At(size_t k) { return values_.data() + k * rows_; }
  double Dot(size_t a, size_t b) {
    return BestThinKernels().dot(At(a), At(b), static_cast<int64_t>(rows_));
  }
  double Length(size_t k) { return std::sqrt(Dot(k, k)); }

  // Takes away what lies along the columns before it: twice, because the first time leaves noise.
  double LengthBeside(size_t k) {
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t before = 0; before < k; ++before) {
        const double along = Dot(before, k);
        const double* const other = At(before);
        double* const column = At(k);
        for (size_t i = 0; i < rows_; ++i) column[i] -= along * other[i];
      }
    }
    return Length(k);
  }

  // The axis that lies the least along the columns before it.
  void Replace(size_t k) {
    size_t best = 0;
    double least = 2;
    for (size_t i = 0; i < rows_; ++i) {
      double along = 0;
      for (size_t before = 0; before < k; ++before)
        along += (*this)(i, before) * (*this)(i, before);
      if (along < least) {
        least = along;
        best = i;
      }
    }
    for (size_t i = 0; i < rows_; ++i) At(k)[i] = i == best ? 1 : 0;
  }

  const size_t rows_;
  std::vector<double> values_;
};

}  // namespace

void Orthonormalize(float* matrix, int64_t rows, int32_t rank) {
  Columns columns(matrix, rows, rank);
  const auto width = static_cast<size_t>(rank);
  for (size_t k = 0; k < width; ++k) columns.Normalize(k);
  for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
    for (size_t k = 0; k < width; ++k) matrix[i * width + k] = static_cast<float>(columns(i, k));
  }
}

}  // namespace rabit
