// Kernels for AVX2 and F16C.
#include "arithmetic/kernels.h"

#if defined(__AVX2__) && defined(__F16C__)
#define RABIT_VECTOR_BYTES 32
#include "arithmetic/kernels_template.h"

namespace rabit {
const Kernels* Avx2Kernels() { return &kKernels; }
}  // namespace rabit
#else
namespace rabit {
const Kernels* Avx2Kernels() { return nullptr; }
}  // namespace rabit
#endif
