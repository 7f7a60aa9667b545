#include "arithmetic/wave_kernels.h"

#include "base/cpu_features.h"

namespace rabit {

const WaveKernels& BestWaveKernels() {
#if defined(__x86_64__)
  static const bool has_avx2 = CpuHasAvx2();
  if (has_avx2 && Avx2WaveKernels() != nullptr) return *Avx2WaveKernels();
#endif
  return *PortableWaveKernels();
}

}  // namespace rabit
