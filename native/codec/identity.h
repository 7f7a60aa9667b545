// The identity codec: the bytes as they are; "none" to users.
#pragma once

#include <memory>

#include "codec/codec.h"

namespace rabit {

// Accepts every dtype; linear; decoding adds 16-bit floats in float32.
std::unique_ptr<Codec> MakeIdentityCodec();

}  // namespace rabit
