#include "codec/identity.h"

#include <array>
#include <cstring>
#include <string>

#include "arithmetic/reduce.h"

namespace rabit {
namespace {

Status CheckBytes(size_t have, const TensorView& tensor) {
  if (have == tensor.bytes()) return {};
  return InvalidArgument("codec 'none': " + std::to_string(have) + " bytes for " +
                         std::to_string(tensor.count) + " elements of " +
                         std::string(Name(tensor.dtype)) + ", which take " +
                         std::to_string(tensor.bytes()) + ". Pass a buffer of that size.");
}

class IdentityCodec final : public Codec {
 public:
  std::string_view name() const override { return "none"; }
  Algebra algebra() const override { return Algebra::kLinear; }
  bool Accepts(DType) const override { return true; }
  bool RunsOn(DeviceKind device) const override { return device == DeviceKind::kCpu; }
  int64_t EncodedBytes(int64_t count, DType dtype) const override {
    return count * static_cast<int64_t>(SizeOf(dtype));
  }
  DType WireDType(DType dtype) const override { return dtype; }

  Status Encode(const TensorView& from, Bytes to, PartitionState*) const override {
    RABIT_RETURN_IF_ERROR(CheckBytes(to.size(), from));
    if (!to.empty() && to.data() != from.data) std::memcpy(to.data(), from.data, to.size());
    return {};
  }

  Status Decode(ConstBytes from, const TensorView& to) const override {
    RABIT_RETURN_IF_ERROR(CheckBytes(from.size(), to));
    if (!from.empty() && from.data() != to.data) std::memcpy(to.data, from.data(), from.size());
    return {};
  }

  Status DecodeAdd(ConstBytes from, const TensorView& to) const override {
    RABIT_RETURN_IF_ERROR(CheckBytes(from.size(), to));
    auto* out = static_cast<std::byte*>(to.data);
    const std::array<const std::byte*, 2> inputs = {out, from.data()};
    if (to.count > 0) Reduce(ReduceOp::kSum, to.dtype, inputs, out, to.count);
    return {};
  }
};

}  // namespace

std::unique_ptr<Codec> MakeIdentityCodec() { return std::make_unique<IdentityCodec>(); }

}  // namespace rabit
