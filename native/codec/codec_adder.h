// An EncodingAdder of all codecs whose encodings can be added up by somebody else.
#pragma once

#include <memory>

#include "base/encoded_sum.h"

namespace rabit {

// Decodes the blocks of every rank, adds them up in the order of the ranks in float32 and encodes
// the sum, with the random numbers that a rank would take: what it makes has the bits of the
// codec's own exchange.  Keeps nothing from one chunk to the next.
std::unique_ptr<const EncodingAdder> MakeCodecAdder();

}  // namespace rabit
