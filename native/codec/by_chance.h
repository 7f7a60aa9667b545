// chance: elements that are drawn at random, large ones more surely.
#pragma once

#include <memory>

#include "base/result.h"
#include "codec/codec.h"
#include "codec/codec_spec.h"

namespace rabit {

Result<std::unique_ptr<Codec>> MakeByChanceCodec(CodecSpec& spec);

}  // namespace rabit
