// minmax8: 8 bits for each element, between the least and the largest of its block.
#pragma once

#include <memory>

#include "base/result.h"
#include "codec/codec.h"
#include "codec/codec_spec.h"

namespace rabit {

Result<std::unique_ptr<Codec>> MakeMinMaxCodec(CodecSpec& spec);

}  // namespace rabit
