#include "base/dtype.h"

#include "base/check.h"

namespace rabit {
namespace {

// What ranks combine values of a type by.
enum class Ops : uint8_t {
  kAll,
  kNumeric,   // not bit by bit
  kAdditive,  // sum and average
  kNone,
};

struct DTypeRow {
  std::string_view name;
  size_t bytes;
  Ops ops;
  bool is_float;
  DType wide;
};

constexpr DTypeRow kDTypes[kDTypeCount] = {
    {"uint8", 1, Ops::kAll, false, DType::kInt32},
    {"int8", 1, Ops::kAll, false, DType::kInt32},
    {"uint16", 2, Ops::kAll, false, DType::kInt32},
    {"int16", 2, Ops::kAll, false, DType::kInt32},
    {"int32", 4, Ops::kAll, false, DType::kInt64},
    {"int64", 8, Ops::kAll, false, DType::kInt64},
    {"float16", 2, Ops::kNumeric, true, DType::kFloat32},
    {"float32", 4, Ops::kNumeric, true, DType::kFloat32},
    {"float64", 8, Ops::kNumeric, true, DType::kFloat64},
    {"bool", 1, Ops::kAll, false, DType::kBool},
    {"bfloat16", 2, Ops::kNumeric, true, DType::kFloat32},
    {"uint32", 4, Ops::kNone, false, DType::kUint32},
    {"uint64", 8, Ops::kNone, false, DType::kUint64},
    {"float8_e4m3fn", 1, Ops::kNone, false, DType::kFloat8E4m3fn},
    {"float8_e5m2", 1, Ops::kNone, false, DType::kFloat8E5m2},
    {"float8_e4m3fnuz", 1, Ops::kNone, false, DType::kFloat8E4m3fnuz},
    {"float8_e5m2fnuz", 1, Ops::kNone, false, DType::kFloat8E5m2fnuz},
    {"float8_e8m0fnu", 1, Ops::kNone, false, DType::kFloat8E8m0fnu},
    {"complex64", 8, Ops::kAdditive, false, DType::kComplex64},
    {"complex128", 16, Ops::kAdditive, false, DType::kComplex128},
};

const DTypeRow& Row(DType dtype) {
  const auto index = static_cast<int32_t>(dtype);
  RABIT_CHECK(index >= 0 && index < kDTypeCount, "not a dtype");
  return kDTypes[index];
}

constexpr std::string_view kKinds[] = {
    "allreduce", "allgather", "broadcast", "reduce", "reducescatter", "alltoall", "gather",
    "scatter",   "barrier",   "send",      "recv",   "join",          "vote"};
constexpr std::string_view kOps[] = {"average", "sum",  "adasum", "min", "max",
                                     "product", "band", "bor",    "bxor"};

}  // namespace

size_t SizeOf(DType dtype) { return Row(dtype).bytes; }
bool IsFloat(DType dtype) { return Row(dtype).is_float; }
DType WideOf(DType dtype) { return Row(dtype).wide; }
std::string_view Name(DType dtype) { return Row(dtype).name; }
std::string_view Name(ReduceOp op) { return kOps[static_cast<int32_t>(op)]; }
std::string_view Name(Kind kind) { return kKinds[static_cast<int32_t>(kind)]; }

std::optional<DType> DTypeFrom(int32_t value) {
  if (value < 0 || value >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(value);
}

std::optional<ReduceOp> ReduceOpFrom(int32_t value) {
  if (value < 0 || value > static_cast<int32_t>(ReduceOp::kBitXor) || value == 2)
    return std::nullopt;
  return static_cast<ReduceOp>(value);
}

std::optional<Kind> KindFrom(int32_t value) {
  if (value < 0 || value > static_cast<int32_t>(Kind::kVote)) return std::nullopt;
  return static_cast<Kind>(value);
}

bool Supports(DType dtype, ReduceOp op) {
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  const bool is_bitwise =
      op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  switch (Row(dtype).ops) {
    case Ops::kAll:
      return true;
    case Ops::kNumeric:
      return !is_bitwise;
    case Ops::kAdditive:
      return is_sum;
    case Ops::kNone:
      return false;
  }
  return false;
}

std::string_view LimitOf(DType dtype) {
  switch (Row(dtype).ops) {
    case Ops::kAll:
    case Ops::kNumeric:
      return "bitwise operations need integers or bool";
    case Ops::kAdditive:
      return "complex numbers are summed and averaged";
    case Ops::kNone:
      return "ranks exchange this type and do not combine it";
  }
  return "";
}

}  // namespace rabit
