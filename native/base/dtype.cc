#include "base/dtype.h"

#include "base/check.h"

namespace rabit {
namespace {

struct DTypeRow {
  std::string_view name;
  size_t bytes;
  bool is_float;
  DType wide;
};

constexpr DTypeRow kDTypes[kDTypeCount] = {
    {"uint8", 1, false, DType::kInt32},     {"int8", 1, false, DType::kInt32},
    {"uint16", 2, false, DType::kInt32},    {"int16", 2, false, DType::kInt32},
    {"int32", 4, false, DType::kInt64},     {"int64", 8, false, DType::kInt64},
    {"float16", 2, true, DType::kFloat32},  {"float32", 4, true, DType::kFloat32},
    {"float64", 8, true, DType::kFloat64},  {"bool", 1, false, DType::kBool},
    {"bfloat16", 2, true, DType::kFloat32},
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
  const bool is_bitwise =
      op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  return !is_bitwise || !IsFloat(dtype);
}

}  // namespace rabit
