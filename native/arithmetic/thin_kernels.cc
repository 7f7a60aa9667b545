#include "arithmetic/thin_kernels.h"

#include "base/cpu_features.h"

namespace rabit {

const ThinKernels& BestThinKernels() {
#if defined(__x86_64__)
  static const bool has_avx2 = CpuHasAvx2();
  if (has_avx2 && Avx2ThinKernels() != nullptr) return *Avx2ThinKernels();
#endif
  return *PortableThinKernels();
}

}  // namespace rabit
