// BlockCoder: encodes blocks of float32, each by itself.  What most codecs are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "codec/codec.h"

namespace rabit {

// The bits of the largest finite float32.
inline constexpr uint32_t kLargestFinite = 0x7f7fffffu;
// Blocks of smaller values are sent as zeros: their reciprocals would overflow.
inline constexpr float kScaleMin = 0x1p-100f;

// Stateless and thread-safe.
class BlockCoder {
 public:
  virtual ~BlockCoder() = default;
  virtual std::string_view spec() const = 0;
  // Elements of a block; the last one of a tensor may have fewer.
  virtual int64_t block() const = 0;
  // Of a block of `count` elements: the most, and for coders of a fixed rate exactly.
  virtual size_t EncodedBytesMax(int64_t count) const = 0;
  // `key`: of the block's random numbers.  Returns the bytes written.  A block with a value that is
  // not finite must decode to values that are not finite, so that the loss stays visible.
  virtual size_t Encode(const float* values, int64_t count, uint64_t key, std::byte* to) const = 0;
  // to[i] += factor * value[i].  Returns the bytes read.  `from` comes from another rank:
  // kInvalidArgument if it cannot be an encoding of `count` elements.
  virtual Result<size_t> DecodeAdd(ConstBytes from, int64_t count, float factor,
                                   float* to) const = 0;
};

// Whether a request may bring a second residual, for what encoding the sums leaves out.  Unbiased
// coders need none.
enum class SumFeedback { kNone, kKept };

// Encodes, exchanges by all-to-all, adds the own share in rank order, encodes that again and
// gathers.  For coders whose encodings are as large as EncodedBytesMax says.
std::unique_ptr<Codec> MakeTwoPhaseCodec(std::unique_ptr<const BlockCoder> coder,
                                         SumFeedback feedback = SumFeedback::kNone);

// Everybody gets the encodings of all and adds them in rank order.  Their sizes may differ.
std::unique_ptr<Codec> MakeGatherCodec(std::unique_ptr<const BlockCoder> coder);

// kInvalidArgument if `from` has less than `bytes`, which `count` elements take.
Status CheckEncodedBytes(std::string_view spec, ConstBytes from, size_t bytes, int64_t count);

}  // namespace rabit
