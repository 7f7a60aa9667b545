// Element types, reduce operations and kinds of collective.  The values are part of the C ABI and
// of the wire formats; never reuse one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rabit {

enum class DType : int32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,  // one byte, 0 or 1
  kBfloat16 = 10,
  // Ranks exchange these and do not combine them.
  kUint32 = 11,
  kUint64 = 12,
  kFloat8E4m3fn = 13,
  kFloat8E5m2 = 14,
  kFloat8E4m3fnuz = 15,
  kFloat8E5m2fnuz = 16,
  kFloat8E8m0fnu = 17,
  // Summed and averaged, as pairs of floats.
  kComplex64 = 18,
  kComplex128 = 19,
};
inline constexpr int kDTypeCount = 20;
inline constexpr int kKernelDTypeCount = 11;  // the first ones, which arithmetic has loops for

enum class ReduceOp : int32_t {
  kAverage = 0,  // sum, then divided by the number of ranks; integers truncate toward zero
  kSum = 1,
  // 2 is reserved for Adasum.
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kBitAnd = 6,
  kBitOr = 7,
  kBitXor = 8,
};

enum class Kind : int32_t {
  kAllreduce = 0,
  kAllgather = 1,  // extent 0 may differ between ranks
  kBroadcast = 2,
  kReduce = 3,
  kReduceScatter = 4,  // uneven extent 0: the low ranks get one more row
  kAlltoall = 5,       // splits may be uneven
  kGather = 6,
  kScatter = 7,
  kBarrier = 8,
  kSend = 9,  // pairs with kRecv of the same name on rank `root`
  kRecv = 10,
  kJoin = 11,
  kVote = 12,  // bits OR-ed by the negotiation itself; moves no data
};

// DLPack's numbers.
enum class DeviceKind : int32_t { kCpu = 1, kCuda = 2 };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int32_t index = 0;
  bool operator==(const Device&) const = default;
};

size_t SizeOf(DType dtype);          // bytes of one element
bool IsFloat(DType dtype);           // of those that arithmetic has loops for
std::string_view Name(DType dtype);  // "float32"
std::string_view Name(ReduceOp op);  // "average"
std::string_view Name(Kind kind);    // "allreduce"
std::optional<DType> DTypeFrom(int32_t value);
std::optional<ReduceOp> ReduceOpFrom(int32_t value);
std::optional<Kind> KindFrom(int32_t value);

// In which sums of this type neither round nor wrap before they are divided: float32 of 16-bit
// floats, and integers of more bits; itself of all others.
DType WideOf(DType dtype);

// The one table of what can be combined: every kind that reduces asks it.
bool Supports(DType dtype, ReduceOp op);
// Why some operations of a type are not supported: "bitwise operations need integers or bool".
std::string_view LimitOf(DType dtype);

// Memory we may use but never own.
struct TensorView {
  void* data = nullptr;
  int64_t count = 0;  // elements, not bytes
  DType dtype = DType::kFloat32;
  Device device;

  size_t bytes() const { return static_cast<size_t>(count) * SizeOf(dtype); }
};

}  // namespace rabit
