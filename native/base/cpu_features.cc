#include "base/cpu_features.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rabit {
#if defined(__x86_64__)
namespace {

// The processor is asked directly, because compilers differ: Clang 14 knows no "f16c" in
// __builtin_cpu_supports, and the runtime library of Zig answers no to everything.
struct Features {
  unsigned leaf1_ecx = 0;
  unsigned leaf7_ebx = 0;
  unsigned leaf7_ecx = 0;
  uint64_t saved_state = 0;  // of which registers the kernel saves when it switches threads

  bool Has1(unsigned bits) const { return (leaf1_ecx & bits) == bits; }
  bool Has7(unsigned bits) const { return (leaf7_ebx & bits) == bits; }
  bool SavesAvx() const { return (saved_state & 0x06) == 0x06; }
  bool SavesAvx512() const { return (saved_state & 0xe6) == 0xe6; }
};

Features Ask() {
  Features found;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) found.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    found.leaf7_ebx = ebx;
    found.leaf7_ecx = ecx;
  }
  // A processor may have registers that this kernel does not save: their content would be lost at a
  // change of thread.
  if (found.Has1(bit_OSXSAVE)) {
    uint32_t low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    found.saved_state = static_cast<uint64_t>(high) << 32 | low;
  }
  return found;
}

const Features& Cpu() {
  static const Features features = Ask();
  return features;
}

}  // namespace

bool CpuHasAvx2() {
  return Cpu().SavesAvx() && Cpu().Has1(bit_FMA | bit_F16C) && Cpu().Has7(bit_AVX2);
}

bool CpuHasAvx512() {
  return CpuHasAvx2() && Cpu().SavesAvx512() &&
         Cpu().Has7(bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL);
}

bool CpuHasSse42() { return Cpu().Has1(bit_SSE4_2 | bit_PCLMUL); }

bool CpuHasVectorPclmul() {
  return CpuHasSse42() && Cpu().SavesAvx512() && Cpu().Has7(bit_AVX512F | bit_AVX512VL) &&
         (Cpu().leaf7_ecx & bit_VPCLMULQDQ) != 0;
}

#else

bool CpuHasAvx2() { return false; }
bool CpuHasAvx512() { return false; }
bool CpuHasSse42() { return false; }
bool CpuHasVectorPclmul() { return false; }

#endif
}  // namespace rabit
