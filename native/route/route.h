// Route: who runs one exchange, and how.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/ids.h"

namespace rabit {

// What an exchange carries, as far as its route depends on it; equal on all ranks of the group.
struct Load {
  int64_t bytes = 0;            // of the buffer that is reduced or sent; of all parts together
  bool has_empty_part = false;  // of a gathering: some rank brings nothing

  bool operator==(const Load&) const = default;
};

// What users call the own functions of the MPI library, and of NCCL.
inline constexpr std::string_view kLibraryAlgorithm = "library";
// First inside the hosts, then between them.
inline constexpr std::string_view kHierarchicalAlgorithm = "hierarchical";

struct Route {
  BackendId backend = 0;       // as users count them
  int32_t executor = 0;        // place in EngineParts::backends
  std::string_view algorithm;  // "ring"; lives as long as the router
  std::string_view row;        // which row decided: "link_model" (see Router)
};

}  // namespace rabit
