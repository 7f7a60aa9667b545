// CheckRequest: refuses what cannot work before any rank hears of it.
#pragma once

#include "base/group.h"
#include "engine/devices.h"
#include "engine/request.h"

namespace rabit {

inline constexpr size_t kRequestNameBytesMax = 1024;

// What a request may refer to.
struct RequestLimits {
  int rank = 0;
  size_t backends = 1;
  CodecSet* codecs = nullptr;  // never null in use
  Devices* devices = nullptr;  // nor this
};

// Also fills in what follows from the rest: even splits of an alltoall or scatter, the input of an
// output-only broadcast.  Errors name the rank and the tensor.
Status CheckRequest(const RequestLimits& limits, const Group& group, Request& request);

}  // namespace rabit
