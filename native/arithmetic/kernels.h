// The table of element-wise loops that one instruction set offers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/epilogue.h"

namespace rabit {

// Raw pointers only: the files that fill these tables are compiled for instruction sets that the
// CPU may lack, so they must not instantiate a library template that the linker could pick for
// the rest of the program.
using ReduceLoop = void (*)(const std::byte* const* inputs, int input_count, std::byte* out,
                            int64_t count);
using ConvertLoop = void (*)(const std::byte* from, std::byte* to, int64_t count);
using ScaleLoop = void (*)(const std::byte* from, std::byte* to, int64_t count, double factor);
// Of at least one input; the epilogue is done before the sum is rounded, or narrowed, to the type.
using FinishedSumLoop = void (*)(const std::byte* const* inputs, int input_count, std::byte* out,
                                 int64_t count, const Epilogue& epilogue);

inline constexpr int kReduceOpCount = 9;

struct Kernels {
  // At least two inputs.  nullptr where Supports(dtype, op) is false.
  ReduceLoop reduce[kKernelDTypeCount][kReduceOpCount];
  // Between float types, and between integers and the type that WideOf names; else nullptr.
  ConvertLoop convert[kKernelDTypeCount][kKernelDTypeCount];
  ScaleLoop scale[kKernelDTypeCount];               // nullptr for bool
  FinishedSumLoop finished_sum[kKernelDTypeCount];  // nullptr for bool
};

// nullptr where the compiler cannot build them for this processor family.
const Kernels* PortableKernels();
const Kernels* Avx2Kernels();
const Kernels* Avx512Kernels();

}  // namespace rabit
