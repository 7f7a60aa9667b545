// Codec: how the parts of one bucket are reduced when they travel compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/result.h"
#include "base/status.h"
#include "codec/exchange.h"

namespace rabit {

class BlockCoder;

// A partition of one tensor.  All its views have as many elements of one dtype.
struct CodecPart {
  TensorView in;   // no data on a rank that has joined: it contributes zeros
  TensorView out;  // gets the sum, or what Exchange::Allreduce makes; may be `in`; no data where
                   // nobody wants it
  TensorView
      residual;  // what earlier calls left unsent, replaced by what this one does; or no data
  TensorView sum_residual;  // the same of the blocks whose sum this rank encodes; or no data
  uint64_t key = 0;         // of random numbers: the same on all ranks, another one in every call
  int64_t offset = 0;       // of the first element in its tensor; a multiple of Codec::block()
};

// Plain blocking code over an Exchange, as many rounds as it needs.  Without state: whatever has to
// be remembered is an operand of the request.  Thread-safe.
// The result of an element depends on the element's block alone, not on what else is in the bucket
// and not on where tensors are cut.  Contract checked by testing/codec_conformance.h.
class Codec {
 public:
  virtual ~Codec() = default;
  // The name and every parameter: "levels:bits=4,block=512,…".  The ranks agree about this text.
  virtual std::string_view spec() const = 0;
  // Tensors are cut at multiples of so many elements.
  virtual int64_t block() const { return 1; }
  // OK, or why tensors of this kind and dtype cannot travel so.
  virtual Status Accepts(Kind kind, DType dtype) const = 0;
  // How many a request may bring, one behind the other: one for what this rank encodes, and one for
  // sums that are encoded again.
  virtual int residuals() const = 0;
  // What encodes its blocks, if whoever adds these up needs to know nothing else and keeps nothing;
  // else null.
  virtual const BlockCoder* summable() const { return nullptr; }
  // All parts have one dtype, which is accepted.
  virtual Status Reduce(Exchange& wire, std::span<const CodecPart> parts) const = 0;
};

using CodecHold = std::shared_ptr<const Codec>;

// The codecs that requests name by their spec.  Thread-safe.
class CodecSet {
 public:
  virtual ~CodecSet() = default;
  // kInvalidArgument says what is wrong with the spec.
  virtual Result<CodecHold> Find(std::string_view spec) = 0;
};

}  // namespace rabit
