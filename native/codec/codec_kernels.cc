#include "codec/codec_kernels.h"

namespace rabit {

const CodecKernels& BestCodecKernels() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                               __builtin_cpu_supports("fma");
  if (has_avx2 && Avx2CodecKernels() != nullptr) return *Avx2CodecKernels();
#endif
  return *PortableCodecKernels();
}

}  // namespace rabit
