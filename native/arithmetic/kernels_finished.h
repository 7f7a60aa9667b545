// Sums that are divided and scaled before they become values of their type, and what else integers
// need.  Part of kernels_template.h.
#pragma once

#include "arithmetic/kernels_lanes.h"
#include "base/epilogue.h"

namespace rabit {
namespace {

// ---- Floats ----------------------------------------------------------------------------------

// A sum of floats on its way to the result.  Where a sum of values that can be represented may
// overflow, every value is multiplied by a power of two first, so small that the sum cannot, and
// the epilogue takes it back.  The smallest bfloat16 is 2^-133 and the smallest float32 2^-149, so
// that with up to 1024 inputs this changes no bit of what does not overflow.
template <class E>
struct Ending {
  using Scalar = typename E::Scalar;
  Ending(const Epilogue& epilogue, int input_count)
      : divisor(static_cast<Scalar>(epilogue.divisor)),
        factor(static_cast<Scalar>(epilogue.factor)),
        divides(epilogue.divisor != 1) {
    if constexpr (E::kNeedsHeadroom) {
      for (int reach = 1; reach < input_count; reach *= 2) headroom /= 2;
      (divides ? divisor : factor) *= divides ? headroom : 1 / headroom;
    }
    scales = factor != 1;
  }
  RABIT_INLINE typename E::Vector Load(const std::byte* from) const {
    if constexpr (E::kNeedsHeadroom) return E::Times(E::Load(from), headroom);
    return E::Load(from);
  }
  RABIT_INLINE typename E::Vector Of(typename E::Vector sum) const {
    if (divides) sum = E::Over(sum, divisor);
    return scales ? E::Times(sum, factor) : sum;
  }

  Scalar headroom = 1;
  Scalar divisor;
  Scalar factor;
  bool divides;
  bool scales;
};

template <class E, int kVectors>
RABIT_INLINE void FinishVectors(const std::byte* const* inputs, int input_count, std::byte* out,
                                int64_t offset, const Ending<E>& ending) {
  constexpr int kStride = E::kCount * E::kBytes;
  typename E::Vector value[kVectors];
  for (int v = 0; v < kVectors; ++v) value[v] = ending.Load(inputs[0] + offset + v * kStride);
  for (int i = 1; i < input_count; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      value[v] = E::template Apply<Sum>(value[v], ending.Load(inputs[i] + offset + v * kStride));
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    E::StoreResult(ending.Of(value[v]), out + offset + v * kStride);
  }
}

// As Reduce, in which nothing is left to do.
template <class E>
void FinishedSum(const std::byte* const* inputs, int input_count, std::byte* out, int64_t count,
                 const Epilogue& epilogue) {
  const Ending<E> ending(epilogue, input_count);
  int64_t i = 0;
  for (; i + kUnroll * E::kCount <= count; i += kUnroll * E::kCount) {
    FinishVectors<E, kUnroll>(inputs, input_count, out, i * E::kBytes, ending);
  }
  for (; i + E::kCount <= count; i += E::kCount) {
    FinishVectors<E, 1>(inputs, input_count, out, i * E::kBytes, ending);
  }
  if (i == count) return;
  const size_t bytes = static_cast<size_t>(count - i) * E::kBytes;
  const auto load = [&](int input) {
    std::byte padded[E::kCount * E::kBytes] = {};
    __builtin_memcpy(padded, inputs[input] + i * E::kBytes, bytes);
    return ending.Load(padded);
  };
  typename E::Vector value = load(0);
  for (int k = 1; k < input_count; ++k) value = E::template Apply<Sum>(value, load(k));
  std::byte padded[E::kCount * E::kBytes];
  E::StoreResult(ending.Of(value), padded);
  __builtin_memcpy(out + i * E::kBytes, padded, bytes);
}

// ---- Integers --------------------------------------------------------------------------------

template <class T>
struct IntegerRange {
  static constexpr bool kIsSigned = static_cast<T>(-1) < static_cast<T>(0);
  static constexpr int kBits = 8 * sizeof(T) - (kIsSigned ? 1 : 0);
  static constexpr double kEnd =
      static_cast<double>(1ULL << (kBits - 1)) * 2;  // behind the largest
  static constexpr T kLargest = static_cast<T>(((1ULL << (kBits - 1)) - 1) * 2 + 1);
  static constexpr T kSmallest = kIsSigned ? static_cast<T>(-kLargest - 1) : T{0};
};

// Out of range becomes the nearest value of T, NaN becomes 0.
template <class T>
RABIT_INLINE T Truncated(double value) {
  using Range = IntegerRange<T>;
  if (value >= Range::kEnd) return Range::kLargest;
  if (value <= static_cast<double>(Range::kSmallest)) return Range::kSmallest;
  return value == value ? static_cast<T>(value) : T{0};
}

template <class T>
void ScaleIntegers(const std::byte* from, std::byte* to, int64_t count, double factor) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    __builtin_memcpy(&value, from + i * sizeof(T), sizeof(T));
    const T result = Truncated<T>(static_cast<double>(value) * factor);
    __builtin_memcpy(to + i * sizeof(T), &result, sizeof(T));
  }
}

// Out of range becomes the nearest value of To.
template <class From, class To>
RABIT_INLINE To Nearest(From value) {
  if constexpr (sizeof(To) < sizeof(From)) {
    using Range = IntegerRange<To>;
    if (value > static_cast<From>(Range::kLargest)) return Range::kLargest;
    if (value < static_cast<From>(Range::kSmallest)) return Range::kSmallest;
  }
  return static_cast<To>(value);
}

template <class From, class To>
void ConvertIntegers(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    __builtin_memcpy(&value, from + i * sizeof(From), sizeof(From));
    const To result = Nearest<From, To>(value);
    __builtin_memcpy(to + i * sizeof(To), &result, sizeof(To));
  }
}

// Added up in Wide, in which only int64 wraps; then divided, which truncates toward zero.  With a
// factor both are done in float64 and truncated once.
template <class T, class Wide>
void FinishedIntegerSum(const std::byte* const* inputs, int input_count, std::byte* out,
                        int64_t count, const Epilogue& epilogue) {
  constexpr int64_t kBlock = 256;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t here = count - first < kBlock ? count - first : kBlock;
    const size_t bytes = static_cast<size_t>(here) * sizeof(T);
    Wide sum[kBlock] = {};
    T values[kBlock];
    for (int k = 0; k < input_count; ++k) {
      __builtin_memcpy(values, inputs[k] + first * static_cast<int64_t>(sizeof(T)), bytes);
      for (int64_t i = 0; i < here; ++i) {
        sum[i] =
            static_cast<Wide>(static_cast<uint64_t>(sum[i]) + static_cast<uint64_t>(values[i]));
      }
    }
    for (int64_t i = 0; i < here; ++i) {
      values[i] =
          epilogue.factor == 1.0
              ? Nearest<Wide, T>(static_cast<Wide>(sum[i] / epilogue.divisor))
              : Truncated<T>(static_cast<double>(sum[i]) * epilogue.factor / epilogue.divisor);
    }
    __builtin_memcpy(out + first * static_cast<int64_t>(sizeof(T)), values, bytes);
  }
}

}  // namespace
}  // namespace rabit
