// Processors: which processors a rank may use, and what that leaves for each rank of a host.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace rabit {

// Numbers of logical processors, ascending.
using Processors = std::vector<int>;

// The affinity of the calling thread, which a batch system, a container or mpirun may have
// narrowed.
Processors FindProcessors();

// As the kernel writes them: "0-3,8".
std::string ToText(const Processors& processors);
Result<Processors> ParseProcessors(std::string_view text);

// What the ranks of one host may use together.
struct HostCores {
  int ranks = 1;
  int total = 1;  // processors that any of them may use
  int each = 1;   // every rank can have so many to itself; 0: they must share
  int least = 1;  // the fewest that any of them may use, its own threads sharing them

  double ranks_per_core() const { return static_cast<double>(ranks) / total; }
  // A thread that spins may keep from its core the one that it waits for, or others of its rank.
  bool are_shared() const { return each < 1 || least < 2; }
};

// One entry for each rank, at least one.
HostCores ShareCores(std::span<const Processors> ranks);

}  // namespace rabit
