// RouteRules: what the user, or a measured table, says about who runs what, and how.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/work.h"
#include "route/route.h"

namespace rabit {

struct RouteRule {
  std::optional<Kind> kind;                            // none: every kind
  std::optional<DType> dtype;                          // none: every type
  int64_t low = 0;                                     // bytes of one exchange, inclusive
  int64_t high = std::numeric_limits<int64_t>::max();  // exclusive
  BackendId backend = kAnyBackend;
  std::string algorithm;  // empty: as the backend chooses

  bool Fits(const Work& work, int64_t bytes) const;
};

// What rules may name.
struct RouteNames {
  std::span<const std::string> backends;  // of this engine; the place is the number
  bool is_deterministic = false;          // only algorithms that sum in rank order
};

// Rules are separated by ';'.  A rule is
//
//   kind[.dtype][:sizes]:backend[/algorithm]
//   alltoall:*:mpi;allreduce:<64K:builtin;allreduce.float16:4K-1M:builtin/direct;*:builtin
//   allreduce:>=1M:nccl/hierarchical
//
// with kind '*' for every kind, 'send' for both ends of a message, and sizes '*', '<high', '>=low'
// or 'low-high' (low inclusive, high exclusive) in bytes, with K, M or G.  The first rule that fits
// counts.
class RouteRules {
 public:
  RouteRules() = default;

  // kInvalidArgument names the setting, the position and what is known.
  static Result<RouteRules> Parse(std::string_view setting, std::string_view text,
                                  const RouteNames& names);

  // The first that fits work which names no backend, or the backend of this rule.  nullptr: none.
  const RouteRule* Find(const Work& work, int64_t bytes) const;
  // Whether any rule names an algorithm of this backend.
  bool NameAlgorithmOf(BackendId backend) const;

 private:
  friend class RouteRulesParser;

  std::vector<RouteRule> rules_;
};

}  // namespace rabit
