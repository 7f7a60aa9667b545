// The loops behind reduce.h, written once over vectors of RABIT_VECTOR_BYTES.  Included by one
// source per instruction set; everything has internal linkage, so that no code built for a newer
// CPU can be picked by the linker for an older one.  For the same reason nothing of the C++
// library is used here.
#pragma once

#include "arithmetic/kernels.h"
#include "arithmetic/kernels_finished.h"
#include "arithmetic/kernels_lanes.h"

namespace rabit {
namespace {

// ---- Loops -----------------------------------------------------------------------------------

// kVectors vectors from `offset` bytes on: every input is read once, the result written once.
template <class E, class Op, int kVectors>
RABIT_INLINE void ReduceVectors(const std::byte* const* inputs, int input_count, std::byte* out,
                                int64_t offset) {
  constexpr int kStride = E::kCount * E::kBytes;
  typename E::Vector value[kVectors];
  for (int v = 0; v < kVectors; ++v) value[v] = E::Load(inputs[0] + offset + v * kStride);
  for (int i = 1; i < input_count; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      value[v] = E::template Apply<Op>(value[v], E::Load(inputs[i] + offset + v * kStride));
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    E::StoreResult(value[v], out + offset + v * kStride);
  }
}

// Less than one vector: through padded copies, so that the same instructions compute it.
template <class E, class Op>
void ReduceTail(const std::byte* const* inputs, int input_count, std::byte* out, int64_t offset,
                int64_t count) {
  constexpr int kStride = E::kCount * E::kBytes;
  const size_t bytes = static_cast<size_t>(count) * E::kBytes;
  std::byte padded[kStride] = {};
  __builtin_memcpy(padded, inputs[0] + offset, bytes);
  typename E::Vector value = E::Load(padded);
  for (int i = 1; i < input_count; ++i) {
    __builtin_memcpy(padded, inputs[i] + offset, bytes);
    value = E::template Apply<Op>(value, E::Load(padded));
  }
  E::StoreResult(value, padded);
  __builtin_memcpy(out + offset, padded, bytes);
}

template <class E, class Op>
void Reduce(const std::byte* const* inputs, int input_count, std::byte* out, int64_t count) {
  int64_t i = 0;
  for (; i + kUnroll * E::kCount <= count; i += kUnroll * E::kCount) {
    ReduceVectors<E, Op, kUnroll>(inputs, input_count, out, i * E::kBytes);
  }
  for (; i + E::kCount <= count; i += E::kCount) {
    ReduceVectors<E, Op, 1>(inputs, input_count, out, i * E::kBytes);
  }
  if (i < count) ReduceTail<E, Op>(inputs, input_count, out, i * E::kBytes, count - i);
}

// One vector of kLanes elements.
template <class From, class To>
RABIT_INLINE void ConvertVector(const std::byte* from, std::byte* to) {
  static_assert(From::kCount == To::kCount);
  To::Store(From::Load(from), to);
}

// kLanes doubles, seen as floats.  Narrowing rounds to odd: the bits that a second rounding (to a
// 16-bit type) needs stay visible, so the whole conversion rounds once.
template <bool kRoundsToOdd>
struct Double {
  static constexpr int kBytes = 8;
  static constexpr int kCount = kLanes;
  static RABIT_INLINE float Narrow(double value) {
    const float nearest = static_cast<float>(value);
    if (!kRoundsToOdd || static_cast<double>(nearest) == value || value != value) return nearest;
    uint32_t bits = BitsAs<uint32_t>(nearest);
    if (__builtin_fabs(static_cast<double>(nearest)) > __builtin_fabs(value)) --bits;
    return BitsAs<float>(bits | 1u);
  }
  static RABIT_INLINE FloatVector Load(const std::byte* from) {
    double values[kLanes];
    __builtin_memcpy(values, from, sizeof(values));
    FloatVector result;
    for (int i = 0; i < kLanes; ++i) result[i] = Narrow(values[i]);
    return result;
  }
  static RABIT_INLINE void Store(FloatVector value, std::byte* to) {
    double values[kLanes];
    for (int i = 0; i < kLanes; ++i) values[i] = value[i];
    __builtin_memcpy(to, values, sizeof(values));
  }
};

template <class From, class To>
void Convert(const std::byte* from, std::byte* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    ConvertVector<From, To>(from + i * From::kBytes, to + i * To::kBytes);
  }
  if (i == count) return;
  std::byte padded_from[kLanes * From::kBytes] = {};
  std::byte padded_to[kLanes * To::kBytes];
  const size_t rest = static_cast<size_t>(count - i);
  __builtin_memcpy(padded_from, from + i * From::kBytes, rest * From::kBytes);
  ConvertVector<From, To>(padded_from, padded_to);
  __builtin_memcpy(to + i * To::kBytes, padded_to, rest * To::kBytes);
}

// to = Map(from) for floats, in the type the dtype computes with.
template <class E, class Map>
RABIT_INLINE void MapFloats(const std::byte* from, std::byte* to, int64_t count, Map map) {
  int64_t i = 0;
  for (; i + E::kCount <= count; i += E::kCount) {
    E::Store(map(E::Load(from + i * E::kBytes)), to + i * E::kBytes);
  }
  if (i == count) return;
  std::byte padded[E::kCount * E::kBytes] = {};
  const size_t bytes = static_cast<size_t>(count - i) * E::kBytes;
  __builtin_memcpy(padded, from + i * E::kBytes, bytes);
  E::Store(map(E::Load(padded)), padded);
  __builtin_memcpy(to + i * E::kBytes, padded, bytes);
}

template <class E>
void ScaleFloats(const std::byte* from, std::byte* to, int64_t count, double factor) {
  using Scalar = typename E::Scalar;
  const Scalar scalar = static_cast<Scalar>(factor);
  MapFloats<E>(from, to, count, [scalar](typename E::Vector v) { return v * scalar; });
}

// ---- Tables ----------------------------------------------------------------------------------

constexpr int Row(DType dtype) { return static_cast<int>(dtype); }
constexpr int Column(ReduceOp op) { return static_cast<int>(op); }

template <class E, class Reduced = Lanes<E>>
constexpr void FillFloat(Kernels& table, DType dtype) {
  ReduceLoop* row = table.reduce[Row(dtype)];
  row[Column(ReduceOp::kSum)] = row[Column(ReduceOp::kAverage)] = &Reduce<Reduced, Sum>;
  row[Column(ReduceOp::kMin)] = &Reduce<Reduced, Min>;
  row[Column(ReduceOp::kMax)] = &Reduce<Reduced, Max>;
  row[Column(ReduceOp::kProduct)] = &Reduce<Reduced, Product>;
  table.scale[Row(dtype)] = &ScaleFloats<E>;
  table.finished_sum[Row(dtype)] = &FinishedSum<Reduced>;
}

// Sums and products wrap around, so they use the unsigned type of the same width.
template <class T, class U, class Wide>
constexpr void FillInteger(Kernels& table, DType dtype) {
  ReduceLoop* row = table.reduce[Row(dtype)];
  row[Column(ReduceOp::kSum)] = row[Column(ReduceOp::kAverage)] = &Reduce<Lanes<Plain<U>>, Sum>;
  row[Column(ReduceOp::kMin)] = &Reduce<Lanes<Plain<T>>, Min>;
  row[Column(ReduceOp::kMax)] = &Reduce<Lanes<Plain<T>>, Max>;
  row[Column(ReduceOp::kProduct)] = &Reduce<Lanes<Plain<U>>, Product>;
  row[Column(ReduceOp::kBitAnd)] = &Reduce<Lanes<Plain<U>>, And>;
  row[Column(ReduceOp::kBitOr)] = &Reduce<Lanes<Plain<U>>, Or>;
  row[Column(ReduceOp::kBitXor)] = &Reduce<Lanes<Plain<U>>, Xor>;
  table.scale[Row(dtype)] = &ScaleIntegers<T>;
  table.finished_sum[Row(dtype)] = &FinishedIntegerSum<T, Wide>;
}

// Values are 0 and 1: a sum is an or, a product is an and.
constexpr void FillBool(Kernels& table) {
  using B = Lanes<Plain<uint8_t>>;
  ReduceLoop* row = table.reduce[Row(DType::kBool)];
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kBitOr}) {
    row[Column(op)] = &Reduce<B, Or>;
  }
  for (ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBitAnd}) {
    row[Column(op)] = &Reduce<B, And>;
  }
  row[Column(ReduceOp::kBitXor)] = &Reduce<B, Xor>;
}

constexpr Kernels MakeKernels() {
  Kernels table = {};
  FillInteger<uint8_t, uint8_t, int32_t>(table, DType::kUint8);
  FillInteger<int8_t, uint8_t, int32_t>(table, DType::kInt8);
  FillInteger<uint16_t, uint16_t, int32_t>(table, DType::kUint16);
  FillInteger<int16_t, uint16_t, int32_t>(table, DType::kInt16);
  FillInteger<int32_t, uint32_t, int64_t>(table, DType::kInt32);
  FillInteger<int64_t, uint64_t, int64_t>(table, DType::kInt64);
  FillFloat<Half<false>>(table, DType::kFloat16);
  FillFloat<Half<true>, BfloatPairs>(table, DType::kBfloat16);
  FillFloat<Plain<float>>(table, DType::kFloat32);
  FillFloat<Plain<double>>(table, DType::kFloat64);
  FillBool(table);
  const auto set = [&table](DType from, DType to, ConvertLoop loop) {
    table.convert[Row(from)][Row(to)] = loop;
  };
  using F16 = Half<false>;
  using B16 = Half<true>;
  using F32 = Plain<float>;
  set(DType::kFloat16, DType::kBfloat16, &Convert<F16, B16>);
  set(DType::kFloat16, DType::kFloat32, &Convert<F16, F32>);
  set(DType::kFloat16, DType::kFloat64, &Convert<F16, Double<false>>);
  set(DType::kBfloat16, DType::kFloat16, &Convert<B16, F16>);
  set(DType::kBfloat16, DType::kFloat32, &Convert<B16, F32>);
  set(DType::kBfloat16, DType::kFloat64, &Convert<B16, Double<false>>);
  set(DType::kFloat32, DType::kFloat16, &Convert<F32, F16>);
  set(DType::kFloat32, DType::kBfloat16, &Convert<F32, B16>);
  set(DType::kFloat32, DType::kFloat64, &Convert<F32, Double<false>>);
  set(DType::kFloat64, DType::kFloat16, &Convert<Double<true>, F16>);
  set(DType::kFloat64, DType::kBfloat16, &Convert<Double<true>, B16>);
  set(DType::kFloat64, DType::kFloat32, &Convert<Double<false>, F32>);
  set(DType::kUint8, DType::kInt32, &ConvertIntegers<uint8_t, int32_t>);
  set(DType::kInt8, DType::kInt32, &ConvertIntegers<int8_t, int32_t>);
  set(DType::kUint16, DType::kInt32, &ConvertIntegers<uint16_t, int32_t>);
  set(DType::kInt16, DType::kInt32, &ConvertIntegers<int16_t, int32_t>);
  set(DType::kInt32, DType::kInt64, &ConvertIntegers<int32_t, int64_t>);
  set(DType::kInt32, DType::kUint8, &ConvertIntegers<int32_t, uint8_t>);
  set(DType::kInt32, DType::kInt8, &ConvertIntegers<int32_t, int8_t>);
  set(DType::kInt32, DType::kUint16, &ConvertIntegers<int32_t, uint16_t>);
  set(DType::kInt32, DType::kInt16, &ConvertIntegers<int32_t, int16_t>);
  set(DType::kInt64, DType::kInt32, &ConvertIntegers<int64_t, int32_t>);
  return table;
}

constexpr Kernels kKernels = MakeKernels();

}  // namespace
}  // namespace rabit
