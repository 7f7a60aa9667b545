// The C ABI of products with thin matrices.
#include <string>

#include "abi/guard.h"
#include "arithmetic/orthonormal.h"
#include "arithmetic/thin_kernels.h"
#include "include/rabit_abi.h"

namespace rabit {
namespace {

Status CheckShape(const ThinShape& shape) {
  constexpr int64_t kExtentMax = int64_t{1} << 40;
  if (shape.rows >= 0 && shape.columns >= 0 && shape.rows <= kExtentMax &&
      shape.columns <= kExtentMax && shape.rank >= 1) {
    return Status();
  }
  return InvalidArgument("a matrix of " + std::to_string(shape.rows) + " by " +
                         std::to_string(shape.columns) + " and rank " + std::to_string(shape.rank) +
                         " is none: pass extents of 0 to 2^40 and a rank of at least 1");
}

}  // namespace
}  // namespace rabit

using rabit::BestThinKernels;
using rabit::Guard;
using rabit::NullArgument;
using rabit::Status;
using rabit::ThinShape;

int32_t rabit_thin_times(int64_t rows, int64_t columns, int32_t rank, const float* x,
                         const float* residual, float factor, const float* right, float* whole,
                         float* left) {
  return Guard([&]() -> Status {
    const ThinShape shape{rows, columns, rank};
    RABIT_RETURN_IF_ERROR(rabit::CheckShape(shape));
    RABIT_REQUIRE_POINTER(x);
    RABIT_REQUIRE_POINTER(right);
    RABIT_REQUIRE_POINTER(whole);
    RABIT_REQUIRE_POINTER(left);
    BestThinKernels().times(shape, x, residual, factor, right, whole, left);
    return Status();
  });
}

int32_t rabit_thin_orthonormal(int64_t rows, int32_t rank, float* left) {
  return Guard([&]() -> Status {
    RABIT_RETURN_IF_ERROR(rabit::CheckShape({rows, rank, rank}));
    RABIT_REQUIRE_POINTER(left);
    if (rank > rows) {
      return rabit::InvalidArgument("rank is " + std::to_string(rank) + " of " +
                                    std::to_string(rows) +
                                    " rows: no more columns than rows are orthonormal; lower it");
    }
    rabit::Orthonormalize(left, rows, rank);
    return Status();
  });
}

int32_t rabit_thin_transposed_times(int64_t rows, int64_t columns, int32_t rank, const float* whole,
                                    const float* left, float* right) {
  return Guard([&]() -> Status {
    const ThinShape shape{rows, columns, rank};
    RABIT_RETURN_IF_ERROR(rabit::CheckShape(shape));
    RABIT_REQUIRE_POINTER(whole);
    RABIT_REQUIRE_POINTER(left);
    RABIT_REQUIRE_POINTER(right);
    BestThinKernels().transposed_times(shape, whole, left, right);
    return Status();
  });
}

int32_t rabit_thin_expand(int64_t rows, int64_t columns, int32_t rank, const float* left,
                          const float* mean, const float* mine, float* value, float* whole) {
  return Guard([&]() -> Status {
    const ThinShape shape{rows, columns, rank};
    RABIT_RETURN_IF_ERROR(rabit::CheckShape(shape));
    RABIT_REQUIRE_POINTER(left);
    RABIT_REQUIRE_POINTER(mean);
    RABIT_REQUIRE_POINTER(mine);
    RABIT_REQUIRE_POINTER(value);
    RABIT_REQUIRE_POINTER(whole);
    BestThinKernels().expand(shape, left, mean, mine, value, whole);
    return Status();
  });
}
