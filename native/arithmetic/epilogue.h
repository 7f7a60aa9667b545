// Epilogue: what is left of a reduction once all contributions are in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace rabit {

// The division of an average, then the caller's factor.  Applied to every element once.
struct Epilogue {
  int divisor = 1;
  double factor = 1.0;

  bool is_needed() const { return divisor != 1 || factor != 1.0; }
  void Apply(DType dtype, std::byte* data, int64_t count) const;
};

}  // namespace rabit
