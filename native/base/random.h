// Random bytes from the kernel.
#pragma once

#include "base/bytes.h"
#include "base/status.h"

namespace rabit {

// Fills `out` with unpredictable bytes, fit for keys and nonces.
Status FillRandom(Bytes out);

}  // namespace rabit
