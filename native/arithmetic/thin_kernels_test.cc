// Products with thin matrices against sums in double, and every kernel set against each other.
#include "arithmetic/thin_kernels.h"

#include <cmath>
#include <limits>
#include <vector>

#include "arithmetic/orthonormal.h"
#include "testing/noise.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::Floats;
using testing::Noise;

// As large as it says, or longer than a tile, or not a whole number of lanes or of rows at once.
constexpr ThinShape kThinShapes[] = {{1, 1, 1},    {4, 16, 2},  {7, 37, 3},
                                     {3, 2050, 4}, {61, 19, 7}, {9, 1025, 1}};

std::vector<const ThinKernels*> ThinSets() {
  std::vector<const ThinKernels*> found = {PortableThinKernels()};
  if (&BestThinKernels() != PortableThinKernels()) found.push_back(&BestThinKernels());
  return found;
}

double At(const Floats& matrix, int64_t i, int64_t j, int64_t columns) {
  return matrix[static_cast<size_t>(i * columns + j)];
}

// What a step makes of its inputs.
struct ThinStep {
  Floats whole, left, right, value, rest;

  bool operator==(const ThinStep&) const = default;
};

ThinStep RunThinStep(const ThinKernels& kernels, ThinShape shape) {
  const int64_t count = shape.rows * shape.columns;
  const Floats x = Noise(count, 1), residual = Noise(count, 2);
  const Floats given = Noise(shape.rank * shape.columns, 3);
  ThinStep step;
  step.whole.resize(x.size());
  step.value.resize(x.size());
  step.left.resize(static_cast<size_t>(shape.rows * shape.rank));
  step.right.resize(given.size());
  kernels.times(shape, x.data(), residual.data(), 0.5f, given.data(), step.whole.data(),
                step.left.data());
  kernels.transposed_times(shape, step.whole.data(), step.left.data(), step.right.data());
  step.rest = step.whole;
  kernels.expand(shape, step.left.data(), given.data(), step.right.data(), step.value.data(),
                 step.rest.data());
  return step;
}

TEST(ThinKernels, are_the_products_that_sums_in_double_give) {
  for (const ThinShape& shape : kThinShapes) {
    const ThinStep step = RunThinStep(BestThinKernels(), shape);
    const Floats given = Noise(shape.rank * shape.columns, 3);
    const double near = 1e-5 * static_cast<double>(shape.rows * shape.columns);
    for (int64_t i = 0; i < shape.rows; ++i) {
      for (int32_t k = 0; k < shape.rank; ++k) {
        double sum = 0;
        for (int64_t j = 0; j < shape.columns; ++j) {
          sum += At(step.whole, i, j, shape.columns) * At(given, k, j, shape.columns);
        }
        EXPECT_LE(std::abs(At(step.left, i, k, shape.rank) - sum), near);
      }
      for (int64_t j = 0; j < shape.columns; ++j) {
        double value = 0, rest = At(step.whole, i, j, shape.columns);
        for (int32_t k = 0; k < shape.rank; ++k) {
          value += At(step.left, i, k, shape.rank) * At(given, k, j, shape.columns);
          rest -= At(step.left, i, k, shape.rank) * At(step.right, k, j, shape.columns);
        }
        EXPECT_LE(std::abs(At(step.value, i, j, shape.columns) - value),
                  near * (1 + std::abs(value)));
        EXPECT_LE(std::abs(At(step.rest, i, j, shape.columns) - rest), near * (1 + std::abs(rest)));
      }
    }
    for (int32_t k = 0; k < shape.rank; ++k) {
      for (int64_t j = 0; j < shape.columns; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < shape.rows; ++i) {
          sum += At(step.whole, i, j, shape.columns) * At(step.left, i, k, shape.rank);
        }
        EXPECT_LE(std::abs(At(step.right, k, j, shape.columns) - sum), near * (1 + std::abs(sum)));
      }
    }
  }
}

TEST(ThinKernels, give_the_same_bits_on_every_instruction_set) {
  for (const ThinShape& shape : kThinShapes) {
    const ThinStep portable = RunThinStep(*PortableThinKernels(), shape);
    for (const ThinKernels* kernels : ThinSets()) {
      EXPECT_TRUE(RunThinStep(*kernels, shape) == portable);
    }
  }
}

TEST(ThinKernels, without_a_residual_the_whole_is_what_was_given) {
  const ThinShape shape{5, 21, 2};
  const Floats x = Noise(105, 1), right = Noise(42, 2);
  Floats whole(105), left(10);

  BestThinKernels().times(shape, x.data(), nullptr, 3, right.data(), whole.data(), left.data());

  EXPECT_TRUE(whole == x);
}

// The largest product of two columns, and the farthest length from 1.
double FarFromOrthonormal(const Floats& matrix, int64_t rows, int32_t rank) {
  double worst = 0;
  for (int32_t a = 0; a < rank; ++a) {
    for (int32_t b = 0; b <= a; ++b) {
      double sum = 0;
      for (int64_t i = 0; i < rows; ++i) sum += At(matrix, i, a, rank) * At(matrix, i, b, rank);
      worst = std::max(worst, std::abs(sum - (a == b ? 1 : 0)));
    }
  }
  return worst;
}

TEST(Orthonormal, columns_span_what_they_did) {
  const int64_t rows = 40;
  const int32_t rank = 3;
  Floats matrix = Noise(rows * rank, 7);
  const Floats before = matrix;

  Orthonormalize(matrix.data(), rows, rank);

  EXPECT_TRUE(FarFromOrthonormal(matrix, rows, rank) < 1e-6);
  for (int32_t k = 0; k < rank; ++k) {  // Nothing of a column lies beside the new ones.
    std::vector<double> beside(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) beside[static_cast<size_t>(i)] = At(before, i, k, rank);
    for (int32_t other = 0; other < rank; ++other) {
      double along = 0;
      for (int64_t i = 0; i < rows; ++i)
        along += At(before, i, k, rank) * At(matrix, i, other, rank);
      for (int64_t i = 0; i < rows; ++i) {
        beside[static_cast<size_t>(i)] -= along * At(matrix, i, other, rank);
      }
    }
    for (double each : beside) EXPECT_LE(std::abs(each), 1e-5);
  }
}

TEST(Orthonormal, columns_that_are_zero_or_equal_become_others) {
  Floats zeros(12, 0.0f), equal(12, 0.5f), square(9, 1.0f);

  Orthonormalize(zeros.data(), 4, 3);
  Orthonormalize(equal.data(), 4, 3);
  Orthonormalize(square.data(), 3, 3);

  EXPECT_TRUE(FarFromOrthonormal(zeros, 4, 3) < 1e-6);
  EXPECT_TRUE(FarFromOrthonormal(equal, 4, 3) < 1e-6);
  EXPECT_TRUE(FarFromOrthonormal(square, 3, 3) < 1e-6);
}

TEST(Orthonormal, what_is_not_finite_does_not_pass_for_a_number) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Floats matrix = Noise(12, 9);
    matrix[4] = bad;

    Orthonormalize(matrix.data(), 6, 2);

    bool is_finite = true;
    for (float each : matrix) is_finite = is_finite && std::isfinite(each);
    EXPECT_FALSE(is_finite);
  }
}

}  // namespace
}  // namespace rabit
