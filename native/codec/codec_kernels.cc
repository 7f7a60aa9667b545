#include "codec/codec_kernels.h"

#include "base/cpu_features.h"

namespace rabit {

const CodecKernels& BestCodecKernels() {
#if defined(__x86_64__)
  static const bool has_avx2 = CpuHasAvx2();
  if (has_avx2 && Avx2CodecKernels() != nullptr) return *Avx2CodecKernels();
#endif
  return *PortableCodecKernels();
}

}  // namespace rabit
