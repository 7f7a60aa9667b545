// Epilogue: what is left of a reduction once all contributions are in.
#pragma once

namespace rabit {

// The division of an average, then the caller's factor; applied to every element once
// (arithmetic/reduce.h).
struct Epilogue {
  int divisor = 1;
  double factor = 1.0;
};

}  // namespace rabit
