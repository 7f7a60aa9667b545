// Codec: compresses a partition for the wire.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/status.h"

namespace rabit {

enum class Algebra {
  kLinear,      // encodings may be reduced as they are: identity, fp16, bf16
  kGatherOnly,  // must be gathered, decoded and added: top-k, 1-bit, QSGD
};

class PartitionState {  // e.g. an error-feedback residual
 public:
  virtual ~PartitionState() = default;
};

// Stateless and thread-safe; whatever must be remembered is a PartitionState, kept by the engine
// per (tensor, partition).  Contract checked by testing/codec_conformance.h.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string_view name() const = 0;
  virtual Algebra algebra() const = 0;
  virtual bool Accepts(DType dtype) const = 0;  // other dtypes travel uncompressed
  virtual bool RunsOn(DeviceKind device) const = 0;
  // Exact, and the same on every rank.
  virtual int64_t EncodedBytes(int64_t count, DType dtype) const = 0;
  // kLinear only: the dtype in which the encoded bytes are reduced.
  virtual DType WireDType(DType dtype) const = 0;
  virtual Status Encode(const TensorView& from, Bytes to, PartitionState* state) const = 0;
  virtual Status Decode(ConstBytes from, const TensorView& to) const = 0;
  virtual Status DecodeAdd(ConstBytes from, const TensorView& to) const = 0;
  virtual std::unique_ptr<PartitionState> NewState(int64_t count, DType dtype) const {
    (void)count, (void)dtype;
    return nullptr;
  }
};

}  // namespace rabit
