// Which instructions the processor offers; what is compiled for more is chosen at run time.
#pragma once

namespace rabit {

// What the files named *_avx2.cc are compiled for: AVX2, FMA and conversions of half floats.
bool CpuHasAvx2();

}  // namespace rabit
