// The table of codec loops that one instruction set offers.  Every set gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rabit {

// Codes of a levels block: sign and magnitude in `bits` bits, 8 codes in `bits` bytes.
struct LevelsShape {
  int32_t bits = 4;
  bool is_uniform = true;        // levels j / L; otherwise 0 and 2^(j-L), with L = 2^(bits-1) - 1
  const float* table = nullptr;  // in place of both: 2^(bits-1) levels from 0 to 1 that do not fall

  int32_t top() const { return (1 << (bits - 1)) - 1; }  // L
};

// Raw pointers only; see arithmetic/kernels.h.
struct CodecKernels {
  // The largest |x| as bits; more than 0x7f7fffff: there is one that is not finite.
  uint32_t (*largest_bits)(const float* x, int64_t count);
  // Sums of 16 strided lanes, which are then added in pairs: lane i with i+8, i+4, i+2, i+1.
  float (*sum_of_magnitudes)(const float* x, int64_t count);
  float (*sum_of_squares)(const float* x, int64_t count);
  // sums[0] of what has no sign, sums[1] of what has one, in lanes like these.
  void (*sums_of_sides)(const float* x, int64_t count, float* sums);
  // The sum of magnitudes below `bound`, 0 < bound; returns how many there are.
  int64_t (*sum_below)(const float* x, int64_t count, float bound, double* sum);
  void (*range)(const float* x, int64_t count, float* least, float* largest);
  // to = a + b; returns largest_bits of it.
  uint32_t (*add)(const float* a, const float* b, float* to, int64_t count);

  // scale > 0: the magnitude of the last level.
  void (*encode_levels)(const float* x, int64_t count, LevelsShape shape, float scale, uint64_t key,
                        uint8_t* to);
  void (*decode_levels)(const uint8_t* from, int64_t count, LevelsShape shape, float scale,
                        float* to);
  // Sign, 4 bits of exponent and 3 of mantissa of 448·x/scale, rounded at random.
  void (*encode_float8)(const float* x, int64_t count, float scale, uint64_t key, uint8_t* to);
  void (*decode_float8)(const uint8_t* from, int64_t count, float scale, float* to);
  // Biased exponents of float32, up by one with the chance that the mantissa says.
  void (*encode_exponents)(const float* x, int64_t count, uint64_t key, uint8_t* to);
  // to += factor * ±2^exponent, with signs as of encode_signs.
  void (*decode_powers)(const uint8_t* exponents, const uint8_t* signs, int64_t count, float factor,
                        float* to);
  // One bit for each element, set where it is negative.
  void (*encode_signs)(const float* x, int64_t count, uint8_t* to);
  void (*decode_signs)(const uint8_t* from, int64_t count, float scale, float* to);
  // to += values[0] where the bit is not set, values[1] where it is.
  void (*decode_sides)(const uint8_t* from, int64_t count, const float* values, float* to);
  // Bytes of (x - least) * steps, rounded to the nearest.
  void (*encode_bytes)(const float* x, int64_t count, float least, float steps, uint8_t* to);
  void (*decode_bytes)(const uint8_t* from, int64_t count, float least, float step, float factor,
                       float* to);
  // Indices of the elements whose magnitude has at least these bits, in order; returns how many.
  int64_t (*select)(const float* x, int64_t count, uint32_t threshold_bits, uint32_t* indices);
  // The same of elements chosen at random, each with the chance |x| * rate, or surely.
  int64_t (*draw)(const float* x, int64_t count, float rate, uint64_t key, uint32_t* indices);
};

// nullptr where the compiler cannot build them for this processor family.
const CodecKernels* PortableCodecKernels();
const CodecKernels* Avx2CodecKernels();

// What this processor runs fastest.
const CodecKernels& BestCodecKernels();

}  // namespace rabit
