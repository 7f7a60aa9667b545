// fp16, bf16: float32 and float64 travel and are summed as 16-bit floats.
#pragma once

#include <memory>

#include "base/result.h"
#include "codec/codec.h"
#include "codec/codec_spec.h"

namespace rabit {

Result<std::unique_ptr<Codec>> MakeFloat16Codec(CodecSpec& spec);
Result<std::unique_ptr<Codec>> MakeBfloat16Codec(CodecSpec& spec);

}  // namespace rabit
