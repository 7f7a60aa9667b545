#include "codec/cast.h"

#include <cstring>
#include <string>

#include "arithmetic/reduce.h"

namespace rabit {
namespace {

// The encodings are summed as they are: 16-bit floats, accumulated in float32.  Tensors that are
// neither float32 nor float64 travel as they are.
class CastCodec final : public Codec {
 public:
  CastCodec(std::string spec, DType wire) : spec_(std::move(spec)), wire_(wire) {}

  std::string_view spec() const override { return spec_; }
  int residuals() const override { return 0; }

  Status Accepts(Kind kind, DType) const override {
    if (kind == Kind::kAllreduce || kind == Kind::kReduce) return {};
    return Unsupported("codec '" + spec_ + "' is for allreduce and reduce. Use no codec");
  }

  Status Reduce(Exchange& wire, std::span<const CodecPart> parts) const override {
    if (parts.empty()) return {};
    const DType dtype = parts.front().in.dtype;
    const bool converts = dtype == DType::kFloat32 || dtype == DType::kFloat64;
    const DType wire_dtype = converts ? wire_ : dtype;
    const size_t element_bytes = SizeOf(wire_dtype);
    int64_t count = 0;
    for (const CodecPart& part : parts) count += part.in.count;
    if (count == 0) return {};
    RABIT_ASSIGN_OR_RETURN(const Bytes buffer,
                           wire.Scratch(0, static_cast<size_t>(count) * element_bytes));
    size_t at = 0;
    for (const CodecPart& part : parts) {
      const size_t bytes = static_cast<size_t>(part.in.count) * element_bytes;
      Copy(part.in, TensorView{buffer.data() + at, part.in.count, wire_dtype, {}});
      at += bytes;
    }
    RABIT_RETURN_IF_ERROR(wire.Allreduce(TensorView{buffer.data(), count, wire_dtype, {}}));
    at = 0;
    for (const CodecPart& part : parts) {
      const size_t bytes = static_cast<size_t>(part.in.count) * element_bytes;
      const TensorView from{buffer.data() + at, part.in.count, wire_dtype, {}};
      if (part.out.data != nullptr) Copy(from, part.out);
      at += bytes;
    }
    return {};
  }

 private:
  static void Copy(const TensorView& from, const TensorView& to) {
    auto* const out = static_cast<std::byte*>(to.data);
    if (to.count == 0) return;
    if (from.data == nullptr) {  // zero is all bits zero in every dtype
      std::memset(out, 0, to.bytes());
    } else if (from.dtype == to.dtype) {
      std::memcpy(out, from.data, to.bytes());
    } else {
      Convert(from.dtype, static_cast<const std::byte*>(from.data), to.dtype, out, to.count);
    }
  }

  const std::string spec_;
  const DType wire_;
};

Result<std::unique_ptr<Codec>> Make(CodecSpec& spec, DType wire) {
  RABIT_RETURN_IF_ERROR(spec.Finish());
  return std::unique_ptr<Codec>(std::make_unique<CastCodec>(spec.canonical(), wire));
}

}  // namespace

Result<std::unique_ptr<Codec>> MakeFloat16Codec(CodecSpec& spec) {
  return Make(spec, DType::kFloat16);
}
Result<std::unique_ptr<Codec>> MakeBfloat16Codec(CodecSpec& spec) {
  return Make(spec, DType::kBfloat16);
}

}  // namespace rabit
