// natural: powers of two at random, 9 bits for each element.
#pragma once

#include <memory>

#include "base/result.h"
#include "codec/codec.h"
#include "codec/codec_spec.h"

namespace rabit {

Result<std::unique_ptr<Codec>> MakeNaturalCodec(CodecSpec& spec);

}  // namespace rabit
