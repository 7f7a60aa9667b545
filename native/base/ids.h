// Small integer names that all ranks agree on.
#pragma once

#include <cstdint>

namespace rabit {

using TensorId = int32_t;  // given by the coordinator when a name is first agreed
using GroupId = int32_t;   // 0 is the group of all ranks
using BackendId = int32_t;  // kAnyBackend: the engine chooses

inline constexpr GroupId kWorld = 0;
inline constexpr BackendId kAnyBackend = -1;

}  // namespace rabit
