// The cast codecs: float32 and float64 travel as 16-bit floats, rounded to nearest even.
#pragma once

#include <memory>

#include "codec/codec.h"

namespace rabit {

std::unique_ptr<Codec> MakeFloat16Codec();   // "fp16": 11 bits of mantissa, up to 65504
std::unique_ptr<Codec> MakeBfloat16Codec();  // "bf16": 8 bits of mantissa, the range of float32

}  // namespace rabit
