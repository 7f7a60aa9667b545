// Loops over frequencies for AVX2.
#include "arithmetic/wave_kernels.h"

#if defined(__AVX2__)
#include "arithmetic/wave_kernels_template.h"

namespace rabit {
const WaveKernels* Avx2WaveKernels() { return &kWaveKernels; }
}  // namespace rabit
#else
namespace rabit {
const WaveKernels* Avx2WaveKernels() { return nullptr; }
}  // namespace rabit
#endif
