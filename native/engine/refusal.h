// What the other ranks hear of a request that this one turns down before it is announced.
#pragma once

#include "base/group.h"
#include "base/status.h"
#include "engine/request.h"

namespace rabit {

// Whether others wait for `request` under a name that this rank can tell them.  Not so a join, and
// a message whose partner is the mistake.
bool IsAwaited(const Request& request, const Group& group, int rank);

// `why` as the others read it: "broadcast 'w': rank 1 refused it: …".
Status RefusedBy(int rank, const Request& request, const Status& why);

}  // namespace rabit
