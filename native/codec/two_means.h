// means: one bit for each element and two means for each block.
#pragma once

#include <memory>

#include "base/result.h"
#include "codec/codec.h"
#include "codec/codec_spec.h"

namespace rabit {

Result<std::unique_ptr<Codec>> MakeTwoMeansCodec(CodecSpec& spec);

}  // namespace rabit
