// Kernels for any CPU: 16-byte vectors, which every 64-bit processor has.
#define RABIT_VECTOR_BYTES 16
#include "arithmetic/kernels_template.h"

namespace rabit {

const Kernels* PortableKernels() { return &kKernels; }

}  // namespace rabit
