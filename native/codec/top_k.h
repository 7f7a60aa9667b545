// topk: the elements of each block with the largest magnitudes, with their places.
#pragma once

#include <memory>

#include "base/result.h"
#include "codec/codec.h"
#include "codec/codec_spec.h"

namespace rabit {

Result<std::unique_ptr<Codec>> MakeTopKCodec(CodecSpec& spec);

}  // namespace rabit
