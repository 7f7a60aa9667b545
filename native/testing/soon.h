// Soon: the deadline of what ends at once, unless something is wrong.
#pragma once

#include <chrono>

#include "base/bytes.h"

namespace rabit::testing {

// Far enough off for a machine whose cores are taken and for the sanitizers.
inline Deadline Soon() { return After(std::chrono::seconds(60)); }

}  // namespace rabit::testing
