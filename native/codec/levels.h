// levels: stochastic rounding to a table of levels, with a scale for each block.
#pragma once

#include <memory>

#include "base/result.h"
#include "codec/codec.h"
#include "codec/codec_spec.h"

namespace rabit {

Result<std::unique_ptr<Codec>> MakeLevelsCodec(CodecSpec& spec);

}  // namespace rabit
