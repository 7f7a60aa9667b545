// Codec loops for every processor.
#include "codec/codec_kernels_template.h"

namespace rabit {
const CodecKernels* PortableCodecKernels() { return &kCodecKernels; }
}  // namespace rabit
