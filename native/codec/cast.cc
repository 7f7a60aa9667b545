#include "codec/cast.h"

#include <algorithm>
#include <array>
#include <string>

#include "arithmetic/reduce.h"

namespace rabit {
namespace {

// DecodeAdd converts this many elements at a time, on the stack.
constexpr int64_t kBlock = 512;

// Linear: the encodings are reduced as 16-bit floats, accumulated in float32.
class CastCodec final : public Codec {
 public:
  CastCodec(std::string_view name, DType wire) : name_(name), wire_(wire) {}

  std::string_view name() const override { return name_; }
  Algebra algebra() const override { return Algebra::kLinear; }
  bool Accepts(DType dtype) const override {
    return dtype == DType::kFloat32 || dtype == DType::kFloat64;
  }
  bool RunsOn(DeviceKind device) const override { return device == DeviceKind::kCpu; }
  int64_t EncodedBytes(int64_t count, DType) const override {
    return count * static_cast<int64_t>(SizeOf(wire_));
  }
  DType WireDType(DType) const override { return wire_; }

  Status Encode(const TensorView& from, Bytes to, PartitionState*) const override {
    RABIT_RETURN_IF_ERROR(Check(to.size(), from));
    Convert(from.dtype, static_cast<const std::byte*>(from.data), wire_, to.data(), from.count);
    return {};
  }

  Status Decode(ConstBytes from, const TensorView& to) const override {
    RABIT_RETURN_IF_ERROR(Check(from.size(), to));
    Convert(wire_, from.data(), to.dtype, static_cast<std::byte*>(to.data), to.count);
    return {};
  }

  Status DecodeAdd(ConstBytes from, const TensorView& to) const override {
    RABIT_RETURN_IF_ERROR(Check(from.size(), to));
    alignas(64) std::array<std::byte, kBlock * sizeof(double)> block;
    const size_t wire_bytes = SizeOf(wire_);
    const size_t bytes = SizeOf(to.dtype);
    for (int64_t done = 0; done < to.count; done += kBlock) {
      const int64_t count = std::min(kBlock, to.count - done);
      auto* out = static_cast<std::byte*>(to.data) + static_cast<size_t>(done) * bytes;
      Convert(wire_, from.data() + static_cast<size_t>(done) * wire_bytes, to.dtype, block.data(),
              count);
      const std::array<const std::byte*, 2> inputs = {out, block.data()};
      Reduce(ReduceOp::kSum, to.dtype, inputs, out, count);
    }
    return {};
  }

 private:
  Status Check(size_t have, const TensorView& tensor) const {
    if (!Accepts(tensor.dtype)) {
      return Unsupported("codec '" + std::string(name_) + "' takes float32 and float64, not " +
                         std::string(Name(tensor.dtype)) + ". Send that dtype uncompressed.");
    }
    const auto need = static_cast<size_t>(EncodedBytes(tensor.count, tensor.dtype));
    if (have == need) return {};
    return InvalidArgument("codec '" + std::string(name_) + "': " + std::to_string(have) +
                           " encoded bytes for " + std::to_string(tensor.count) +
                           " elements, which take " + std::to_string(need) +
                           ". Pass a buffer of that size.");
  }

  const std::string_view name_;
  const DType wire_;
};

}  // namespace

std::unique_ptr<Codec> MakeFloat16Codec() {
  return std::make_unique<CastCodec>("fp16", DType::kFloat16);
}
std::unique_ptr<Codec> MakeBfloat16Codec() {
  return std::make_unique<CastCodec>("bf16", DType::kBfloat16);
}

}  // namespace rabit
