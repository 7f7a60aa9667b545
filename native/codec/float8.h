// fp8: 8-bit floats with a scale for each block.
#pragma once

#include <memory>

#include "base/result.h"
#include "codec/codec.h"
#include "codec/codec_spec.h"

namespace rabit {

Result<std::unique_ptr<Codec>> MakeFloat8Codec(CodecSpec& spec);

}  // namespace rabit
