// Loops over frequencies for any processor.
#include "arithmetic/wave_kernels_template.h"

namespace rabit {
const WaveKernels* PortableWaveKernels() { return &kWaveKernels; }
}  // namespace rabit
