#include "arithmetic/reduce.h"

#include <cstring>
#include <limits>
#include <vector>

#include "arithmetic/kernels.h"
#include "base/check.h"
#include "base/cpu_features.h"

namespace rabit {
namespace {

const Kernels* KernelsOf(KernelSet set) {
  switch (set) {
    case KernelSet::kPortable:
      return PortableKernels();
    case KernelSet::kAvx2:
      return Avx2Kernels();
    case KernelSet::kAvx512:
      return Avx512Kernels();
  }
  return nullptr;
}

bool CpuOffers(KernelSet set) {
  switch (set) {
    case KernelSet::kPortable:
      return true;
    case KernelSet::kAvx2:
      return CpuHasAvx2();
    case KernelSet::kAvx512:
      return CpuHasAvx512();
  }
  return false;
}

const std::vector<KernelSet>& Available() {
  static const std::vector<KernelSet> sets = [] {
    std::vector<KernelSet> found;
    for (KernelSet set : {KernelSet::kPortable, KernelSet::kAvx2, KernelSet::kAvx512}) {
      if (KernelsOf(set) != nullptr && CpuOffers(set)) found.push_back(set);
    }
    return found;
  }();
  return sets;
}

const Kernels& Best() {
  // Chosen once in a process.  Kernel sets give the same bits, so ranks on different processors
  // agree.
  static const Kernels& kernels = *KernelsOf(Available().back());
  return kernels;
}

struct Elements {
  DType dtype;
  int64_t count;

  bool has_loops() const { return static_cast<int>(dtype) < kKernelDTypeCount; }
};

// Complex numbers are summed and scaled as pairs of floats.
Elements AsReal(DType dtype, int64_t count) {
  if (dtype == DType::kComplex64) return {DType::kFloat32, 2 * count};
  if (dtype == DType::kComplex128) return {DType::kFloat64, 2 * count};
  return {dtype, count};
}

void FinishBy(const Kernels& kernels, const Epilogue& epilogue, DType dtype, std::byte* data,
              int64_t count) {
  RABIT_CHECK(epilogue.divisor > 0, "a number of ranks is positive");
  const Elements real = AsReal(dtype, count);
  if (!real.has_loops()) return;
  const FinishedSumLoop loop = kernels.finished_sum[static_cast<int>(real.dtype)];
  const std::byte* const inputs[] = {data};
  if (loop != nullptr && count > 0 && !epilogue.is_nothing())
    loop(inputs, 1, data, real.count, epilogue);
}

void ReduceBy(const Kernels& kernels, ReduceOp op, DType dtype,
              std::span<const std::byte* const> inputs, std::byte* out, int64_t count,
              const Epilogue& epilogue) {
  RABIT_CHECK(!inputs.empty() && inputs.size() <= 1024, "1 to 1024 inputs can be reduced");
  RABIT_CHECK(Supports(dtype, op), "this dtype does not have this operation");
  if (count == 0) return;
  const auto input_count = static_cast<int>(inputs.size());
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  const Elements real = AsReal(dtype, count);
  const FinishedSumLoop sum = kernels.finished_sum[static_cast<int>(real.dtype)];
  // Sum and epilogue in one pass over wide numbers: rounding the sum first would cost a narrow type
  // a digit.
  if (is_sum && sum != nullptr && !epilogue.is_nothing()) {
    return sum(inputs.data(), input_count, out, real.count, epilogue);
  }
  if (input_count > 1) {
    kernels.reduce[static_cast<int>(real.dtype)][static_cast<int>(op)](inputs.data(), input_count,
                                                                       out, real.count);
  } else if (inputs[0] != out) {
    std::memcpy(out, inputs[0], static_cast<size_t>(count) * SizeOf(dtype));
  }
  FinishBy(kernels, epilogue, dtype, out, count);
}

void ConvertBy(const Kernels& kernels, DType from_dtype, const std::byte* from, DType to_dtype,
               std::byte* to, int64_t count) {
  if (count == 0) return;
  if (from_dtype == to_dtype) {
    if (from != to) std::memcpy(to, from, static_cast<size_t>(count) * SizeOf(from_dtype));
    return;
  }
  RABIT_CHECK(AsReal(from_dtype, count).has_loops() && AsReal(to_dtype, count).has_loops(),
              "what is not a real number is not converted");
  const ConvertLoop loop =
      kernels.convert[static_cast<int>(from_dtype)][static_cast<int>(to_dtype)];
  RABIT_CHECK(loop != nullptr, "floats are converted, and integers to more bits and back");
  loop(from, to, count);
}

template <class T>
void Fill(std::byte* data, int64_t count, T value) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(data + i * sizeof(T), &value, sizeof(T));
}

// The identity of each op as a value of T; `low` and `high` are the ends of its range.
template <class T>
void FillIdentityOf(ReduceOp op, std::byte* data, int64_t count, T one, T low, T high, T ones) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return Fill<T>(data, count, T{});
    case ReduceOp::kProduct:
      return Fill<T>(data, count, one);
    case ReduceOp::kMin:
      return Fill<T>(data, count, high);
    case ReduceOp::kMax:
      return Fill<T>(data, count, low);
    case ReduceOp::kBitAnd:
      return Fill<T>(data, count, ones);
  }
}

template <class T>
void FillIntegerIdentity(ReduceOp op, std::byte* data, int64_t count) {
  FillIdentityOf<T>(op, data, count, T{1}, std::numeric_limits<T>::min(),
                    std::numeric_limits<T>::max(), static_cast<T>(~T{0}));
}

template <class T>
void FillFloatIdentity(ReduceOp op, std::byte* data, int64_t count) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  FillIdentityOf<T>(op, data, count, T{1}, -kInfinity, kInfinity, T{});
}

}  // namespace

void Reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs, std::byte* out,
            int64_t count, const Epilogue& epilogue) {
  ReduceBy(Best(), op, dtype, inputs, out, count, epilogue);
}

void Scale(DType dtype, const std::byte* from, std::byte* to, int64_t count, double factor) {
  const Elements real = AsReal(dtype, count);
  const ScaleLoop loop = real.has_loops() ? Best().scale[static_cast<int>(real.dtype)] : nullptr;
  if (loop != nullptr) {
    loop(from, to, real.count, factor);
  } else if (from != to && count > 0) {
    std::memcpy(to, from, static_cast<size_t>(count) * SizeOf(dtype));
  }
}

void ApplyEpilogue(const Epilogue& epilogue, DType dtype, std::byte* data, int64_t count) {
  FinishBy(Best(), epilogue, dtype, data, count);
}

void Convert(DType from_dtype, const std::byte* from, DType to_dtype, std::byte* to,
             int64_t count) {
  ConvertBy(Best(), from_dtype, from, to_dtype, to, count);
}

void FillIdentity(ReduceOp op, DType given_dtype, std::byte* data, int64_t given_count) {
  RABIT_CHECK(Supports(given_dtype, op), "this dtype does not have this operation");
  const auto [dtype, count] = AsReal(given_dtype, given_count);
  switch (dtype) {
    case DType::kUint8:
      return FillIntegerIdentity<uint8_t>(op, data, count);
    case DType::kInt8:
      return FillIntegerIdentity<int8_t>(op, data, count);
    case DType::kUint16:
      return FillIntegerIdentity<uint16_t>(op, data, count);
    case DType::kInt16:
      return FillIntegerIdentity<int16_t>(op, data, count);
    case DType::kInt32:
      return FillIntegerIdentity<int32_t>(op, data, count);
    case DType::kInt64:
      return FillIntegerIdentity<int64_t>(op, data, count);
    case DType::kFloat32:
      return FillFloatIdentity<float>(op, data, count);
    case DType::kFloat64:
      return FillFloatIdentity<double>(op, data, count);
    case DType::kFloat16:
      return FillIdentityOf<uint16_t>(op, data, count, 0x3c00, 0xfc00, 0x7c00, 0);
    case DType::kBfloat16:
      return FillIdentityOf<uint16_t>(op, data, count, 0x3f80, 0xff80, 0x7f80, 0);
    case DType::kBool:
      return FillIdentityOf<uint8_t>(op, data, count, 1, 0, 1, 1);
    default:  // Supports() has said that there is no such type.
      break;
  }
}

std::span<const KernelSet> AvailableKernelSets() { return Available(); }

void ReduceWith(KernelSet kernels, ReduceOp op, DType dtype,
                std::span<const std::byte* const> inputs, std::byte* out, int64_t count,
                const Epilogue& epilogue) {
  ReduceBy(*KernelsOf(kernels), op, dtype, inputs, out, count, epilogue);
}

void ConvertWith(KernelSet kernels, DType from_dtype, const std::byte* from, DType to_dtype,
                 std::byte* to, int64_t count) {
  ConvertBy(*KernelsOf(kernels), from_dtype, from, to_dtype, to, count);
}

std::string_view Name(KernelSet kernels) {
  switch (kernels) {
    case KernelSet::kPortable:
      return "portable";
    case KernelSet::kAvx2:
      return "avx2";
    case KernelSet::kAvx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace rabit
