#include "base/epilogue.h"

#include <bit>

namespace rabit {

Epilogue EpilogueOf(ReduceOp op, DType dtype, int size, double postscale) {
  if (op != ReduceOp::kAverage || size == 1) return {1, postscale};
  // The reciprocal of a power of two is exact, and so is multiplying floats by it.
  const bool is_exact =
      std::has_single_bit(static_cast<unsigned>(size)) && IsFloat(dtype) && postscale == 1.0;
  return is_exact ? Epilogue{1, 1.0 / size} : Epilogue{size, postscale};
}

bool EndsWide(DType dtype, const Epilogue& epilogue) {
  return !epilogue.is_nothing() && WideOf(dtype) != dtype;
}

}  // namespace rabit
