// sign: one bit for each element and the mean magnitude of each block.
#pragma once

#include <memory>

#include "base/result.h"
#include "codec/codec.h"
#include "codec/codec_spec.h"

namespace rabit {

Result<std::unique_ptr<Codec>> MakeSignCodec(CodecSpec& spec);

}  // namespace rabit
