// Kernels for AVX-512 (F, BW, VL, DQ).
#include "arithmetic/kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define RABIT_VECTOR_BYTES 64
#include "arithmetic/kernels_template.h"

namespace rabit {
const Kernels* Avx512Kernels() { return &kKernels; }
}  // namespace rabit
#else
namespace rabit {
const Kernels* Avx512Kernels() { return nullptr; }
}  // namespace rabit
#endif
