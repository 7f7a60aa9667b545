#include "arithmetic/epilogue.h"

#include "arithmetic/reduce.h"

namespace rabit {

void Epilogue::Apply(DType dtype, std::byte* data, int64_t count) const {
  if (count == 0) return;
  if (divisor != 1) Divide(dtype, data, count, divisor);
  if (factor != 1.0) Scale(dtype, data, data, count, factor);
}

}  // namespace rabit
