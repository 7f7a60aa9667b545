// Thin products for AVX2.
#include "arithmetic/thin_kernels.h"

#if defined(__AVX2__)
#include "arithmetic/thin_kernels_template.h"

namespace rabit {
const ThinKernels* Avx2ThinKernels() { return &kThinKernels; }
}  // namespace rabit
#else
namespace rabit {
const ThinKernels* Avx2ThinKernels() { return nullptr; }
}  // namespace rabit
#endif
