// PsRows: what of a job the summation servers do.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/group.h"
#include "base/ids.h"
#include "base/work.h"
#include "route/route.h"

namespace rabit {

inline constexpr std::string_view kPushPullAlgorithm = "push_pull";

struct PsRows {
  BackendId backend = -1;   // what users call 'ps'
  int32_t executor = -1;    // place in EngineParts::backends
  bool is_default = false;  // of operations that name no backend

  // Servers sum, and nothing else.
  bool RunsOnServers(const Work& work, const Group& group) const {
    return work.kind == Kind::kAllreduce && group.size() > 1;
  }
};

}  // namespace rabit
