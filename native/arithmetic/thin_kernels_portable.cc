// Thin products for any processor.
#include "arithmetic/thin_kernels_template.h"

namespace rabit {
const ThinKernels* PortableThinKernels() { return &kThinKernels; }
}  // namespace rabit
