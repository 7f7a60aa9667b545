// Epilogue: what is left of a reduction once all contributions are in.
#pragma once

#include "base/dtype.h"

namespace rabit {

// The division of an average, then the caller's factor; applied to every element once, before the
// sum is rounded to the type of the tensor (arithmetic/reduce.h).
struct Epilogue {
  int divisor = 1;
  double factor = 1.0;

  bool is_nothing() const { return divisor == 1 && factor == 1.0; }
  bool operator==(const Epilogue&) const = default;
};

// What an operation over `size` ranks leaves to do after its reduction.
Epilogue EpilogueOf(ReduceOp op, DType dtype, int size, double postscale);

// Whether a sum stays in WideOf(dtype) until this epilogue is done.
bool EndsWide(DType dtype, const Epilogue& epilogue);

}  // namespace rabit
