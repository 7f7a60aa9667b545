// Which instructions the processor offers; what is compiled for more is chosen at run time.
#pragma once

namespace rabit {

// What the files named *_avx2.cc are compiled for: AVX2, FMA and conversions of half floats.
bool CpuHasAvx2();
// What kernels_avx512.cc is compiled for: AVX2 as above, and AVX-512 F, BW, DQ, VL.
bool CpuHasAvx512();
// What crc32c_sse42.cc is compiled for: SSE 4.2 and PCLMULQDQ.
bool CpuHasSse42();
// What crc32c_avx512.cc is compiled for: SSE 4.2 as above, AVX-512 F, VL and VPCLMULQDQ.
bool CpuHasVectorPclmul();

}  // namespace rabit
