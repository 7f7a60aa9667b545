// AlgorithmRules: what the user says about which algorithm runs at which size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace rabit {

// Rules are separated by ';'.  A rule is an allreduce algorithm, for every size, or
//
//   kind:low-high@algorithm        allreduce:0-64K@recursive_doubling;allreduce:64K-inf@ring
//
// where low (inclusive) and high (exclusive) are bytes, with K, M or G, or inf.  The first rule
// that fits is used; where none fits the choice goes by cost.
class AlgorithmRules {
 public:
  AlgorithmRules() = default;

  // kInvalidArgument names the position and what is known.  With `must_be_rank_ordered` an
  // allreduce algorithm that is not rank-ordered is refused.
  static Result<AlgorithmRules> Parse(std::string_view text, bool must_be_rank_ordered);

  // Empty: no rule fits.
  std::string_view Find(Kind kind, int64_t bytes) const;

 private:
  struct Rule {
    Kind kind;
    int64_t low;
    int64_t high;
    std::string algorithm;
  };
  friend class AlgorithmRulesParser;

  std::vector<Rule> rules_;
};

// The algorithms of a kind that has a choice: allreduce, allgather, broadcast, reducescatter.
// Empty otherwise.
std::vector<std::string_view> AlgorithmNames(Kind kind);
// Of an algorithm of a kind that reduces.
bool SumsInRankOrder(Kind kind, std::string_view algorithm);

// "64K" -> 65536; with K, M or G, or inf.  None if it is no such number.
std::optional<int64_t> ParseByteCount(std::string_view word);
// "a, b, c"
std::string JoinNames(const std::vector<std::string_view>& names);

}  // namespace rabit
