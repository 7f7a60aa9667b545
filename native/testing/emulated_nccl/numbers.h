// Arithmetic of NCCL's types, one element at a time: plain enough to be right.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "backend/nccl/nccl_functions.h"

namespace rabit::emulated_nccl {

inline size_t BytesOf(nccl::DataType type) {
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[type];
}

// A float of 16 bits; kFraction: how many of them are its fraction.
template <int kFraction>
struct Short {
  static constexpr int kBias = (1 << (14 - kFraction)) - 1;

  uint16_t bits = 0;

  Short() = default;
  explicit Short(double value) {
    const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
    int exponent = 0;
    const double magnitude = std::fabs(value);
    std::frexp(magnitude, &exponent);
    // Below the smallest normal number all have its spacing.
    const int spacing = std::max(exponent - 1, 1 - kBias) - kFraction;
    const double steps = std::nearbyint(std::ldexp(magnitude, -spacing));
    constexpr auto kInfinity = static_cast<uint16_t>(0x7fff >> kFraction << kFraction);
    const double whole = steps + std::ldexp(spacing + kFraction + kBias - 1, kFraction);
    bits = static_cast<uint16_t>(sign | (magnitude == 0       ? 0
                                         : std::isnan(value)  ? kInfinity | 1
                                         : whole >= kInfinity ? kInfinity
                                                              : static_cast<uint16_t>(whole)));
  }
  explicit operator double() const {
    const int exponent = (bits & 0x7fff) >> kFraction;
    const int fraction = bits & ((1 << kFraction) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == 0x7fff >> kFraction) return fraction != 0 ? NAN : sign * INFINITY;
    const int whole = exponent == 0 ? fraction : fraction + (1 << kFraction);
    return sign * std::ldexp(whole, std::max(exponent, 1) - kBias - kFraction);
  }
};
using Half = Short<10>;
using Brain = Short<7>;

// What a reduction does: one of the operators that are there, or a sum of products.
struct Operator {
  nccl::RedOp op = nccl::kSum;
  bool multiplies = false;
  double scalar = 1.0;  // of its type
};

template <class T>
T Combine(const Operator& with, T a, T b) {
  if constexpr (requires { a.bits; }) {
    const auto x = static_cast<double>(a);
    const auto y = static_cast<double>(b);
    return T(Combine(with, x, y));
  } else if constexpr (std::is_integral_v<T>) {
    using Wraps = std::make_unsigned_t<T>;
    if (with.op == nccl::kProd)
      return static_cast<T>(static_cast<Wraps>(a) * static_cast<Wraps>(b));
    if (with.op == nccl::kMax) return a > b ? a : b;
    if (with.op == nccl::kMin) return a < b ? a : b;
    return static_cast<T>(static_cast<Wraps>(a) + static_cast<Wraps>(b));
  } else {
    if (with.op == nccl::kProd) return a * b;
    if (with.op == nccl::kMax) return std::fmax(a, b);
    if (with.op == nccl::kMin) return std::fmin(a, b);
    return a + b;
  }
}

// What becomes of an input before it is added up, and of a sum afterwards.
template <class T>
T Before(const Operator& with, T value, size_t ranks) {
  if (with.multiplies) return T(static_cast<double>(value) * with.scalar);
  if constexpr (!std::is_integral_v<T>) {
    if (with.op == nccl::kAvg)
      return T(static_cast<double>(value) *
               static_cast<double>(T(1.0 / static_cast<double>(ranks))));
  }
  return value;
}
template <class T>
T After(const Operator& with, T value, size_t ranks) {
  if constexpr (std::is_integral_v<T>) {
    if (with.op == nccl::kAvg) return static_cast<T>(value / static_cast<T>(ranks));
  }
  return value;
}

// `inputs` by rank; they are added up in that order.
template <class T>
void ReduceAs(const Operator& with, std::span<const std::vector<std::byte>> inputs, std::byte* out,
              size_t count) {
  const auto at = [](const std::byte* from, size_t i) {
    T value{};
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    return value;
  };
  for (size_t i = 0; i < count; ++i) {
    T sum = Before(with, at(inputs[0].data(), i), inputs.size());
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      sum = Combine(with, sum, Before(with, at(inputs[rank].data(), i), inputs.size()));
    }
    sum = After(with, sum, inputs.size());
    std::memcpy(out + i * sizeof(T), &sum, sizeof(T));
  }
}

inline void Reduce(nccl::DataType type, const Operator& with,
                   std::span<const std::vector<std::byte>> inputs, std::byte* out, size_t count) {
  switch (type) {
    case nccl::kInt8:
      return ReduceAs<int8_t>(with, inputs, out, count);
    case nccl::kUint8:
      return ReduceAs<uint8_t>(with, inputs, out, count);
    case nccl::kInt32:
      return ReduceAs<int32_t>(with, inputs, out, count);
    case nccl::kInt64:
      return ReduceAs<int64_t>(with, inputs, out, count);
    case nccl::kFloat16:
      return ReduceAs<Half>(with, inputs, out, count);
    case nccl::kFloat32:
      return ReduceAs<float>(with, inputs, out, count);
    case nccl::kFloat64:
      return ReduceAs<double>(with, inputs, out, count);
    default:
      return ReduceAs<Brain>(with, inputs, out, count);
  }
}

// The number that `scalar` of this type is.
inline double ScalarOf(nccl::DataType type, const void* scalar) {
  const auto read = [scalar]<class T>(T value) {
    std::memcpy(&value, scalar, sizeof value);
    return static_cast<double>(value);
  };
  switch (type) {
    case nccl::kFloat16:
      return read(Half());
    case nccl::kBfloat16:
      return read(Brain());
    case nccl::kFloat32:
      return read(float());
    case nccl::kFloat64:
      return read(double());
    default:
      return NAN;  // of integers: nothing here makes them
  }
}

}  // namespace rabit::emulated_nccl
