// Element-wise arithmetic on tensors.  Kernels are chosen once, at run time, by what the CPU
// offers (AVX-512, AVX2+F16C, portable); every choice gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/epilogue.h"

namespace rabit {

// out[i] = ((inputs[0][i] op inputs[1][i]) op inputs[2][i]) … in exactly this order; then the
// epilogue (kAverage is summed: the division is the epilogue's).  16-bit floats are accumulated in
// float32 and rounded once, at the end.  With an epilogue, sums of integers below 64 bits are added
// up in more of them, and sums of bfloat16 cannot overflow: a mean is right wherever the type holds
// it.  `out` may be one of the inputs; otherwise nothing may overlap.  1 to 1024 inputs.
// Precondition: Supports(dtype, op).
void Reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs, std::byte* out,
            int64_t count, const Epilogue& epilogue = {});

// Does to a sum what is left of it, with one rounding: x / divisor * factor, of 16-bit floats in
// float32.  Integers are divided and truncated toward zero, with a factor in float64.
void ApplyEpilogue(const Epilogue& epilogue, DType dtype, std::byte* data, int64_t count);

// to[i] = from[i] * factor; from == to allowed.  Integers are multiplied in float64 and truncated
// toward zero; 16-bit floats in float32; float32 in float32; complex numbers as pairs of floats;
// bool and what is not combined are left as they are.
void Scale(DType dtype, const std::byte* from, std::byte* to, int64_t count, double factor);

// Element-wise conversion between float16, bfloat16, float32 and float64 (round to nearest even),
// and between an integer and WideOf it (out of range becomes the nearest value).
void Convert(DType from_dtype, const std::byte* from, DType to_dtype, std::byte* to, int64_t count);

// The value x with x op y = y for every y: what a rank that has joined contributes.
void FillIdentity(ReduceOp op, DType dtype, std::byte* data, int64_t count);

// Kernel sets, for tests and for the statistics.
enum class KernelSet : int32_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };
std::span<const KernelSet> AvailableKernelSets();  // at least kPortable; the last one is used
void ReduceWith(KernelSet kernels, ReduceOp op, DType dtype,
                std::span<const std::byte* const> inputs, std::byte* out, int64_t count,
                const Epilogue& epilogue = {});
void ConvertWith(KernelSet kernels, DType from_dtype, const std::byte* from, DType to_dtype,
                 std::byte* to, int64_t count);
std::string_view Name(KernelSet kernels);

}  // namespace rabit
