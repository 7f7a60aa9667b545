// Codec loops for AVX2.
#include "codec/codec_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>

#include "codec/codec_kernels_template.h"

namespace rabit {
const CodecKernels* Avx2CodecKernels() { return &kCodecKernels; }
}  // namespace rabit
#else
namespace rabit {
const CodecKernels* Avx2CodecKernels() { return nullptr; }
}  // namespace rabit
#endif
