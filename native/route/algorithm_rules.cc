#include "route/algorithm_rules.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "base/kind.h"
#include "collective/allreduce.h"

namespace rabit {
namespace {

constexpr Kind kKindsWithChoice[] = {Kind::kAllreduce, Kind::kAllgather, Kind::kBroadcast,
                                     Kind::kReduceScatter};

std::string KnownKinds() {
  std::vector<std::string_view> names;
  for (Kind kind : kKindsWithChoice) names.push_back(Name(kind));
  return JoinNames(names);
}

}  // namespace

std::vector<std::string_view> AlgorithmNames(Kind kind) {
  std::vector<std::string_view> names;
  if (kind == Kind::kAllreduce) {
    for (const AllreduceAlgorithm& algorithm : AllreduceAlgorithms()) {
      names.push_back(algorithm.name);
    }
  }
  if (kind == Kind::kAllgather) names = {"direct", "ring"};
  if (kind == Kind::kBroadcast) names = {"binomial", "chain"};
  if (kind == Kind::kReduceScatter) names = {"direct", "ring"};
  return names;
}

bool SumsInRankOrder(Kind kind, std::string_view algorithm) {
  if (kind != Kind::kAllreduce) return algorithm == "direct";
  const AllreduceAlgorithm* const found = FindAllreduceAlgorithm(algorithm);
  return found != nullptr && found->is_rank_ordered;
}

std::optional<int64_t> ParseByteCount(std::string_view word) {
  if (word == "inf") return std::numeric_limits<int64_t>::max();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const std::string_view unit = word.substr(static_cast<size_t>(end - word.data()));
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  const bool is_number = error == std::errc() && value >= 0 && shift >= 0;
  if (!is_number || value > (std::numeric_limits<int64_t>::max() >> shift)) return std::nullopt;
  return value << shift;
}

std::string JoinNames(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

// Reads from left to right; `at_` is where an error is reported.
class AlgorithmRulesParser {
 public:
  AlgorithmRulesParser(std::string_view text, bool must_be_rank_ordered)
      : text_(text), must_be_rank_ordered_(must_be_rank_ordered) {}

  Result<AlgorithmRules> Parse() {
    AlgorithmRules parsed;
    if (text_.empty()) return parsed;
    for (;;) {
      RABIT_ASSIGN_OR_RETURN(AlgorithmRules::Rule rule, ParseRule());
      parsed.rules_.push_back(std::move(rule));
      if (at_ == text_.size()) return parsed;
      ++at_;  // the ';'
    }
  }

 private:
  Result<AlgorithmRules::Rule> ParseRule();
  Result<Kind> ParseKind();
  Result<int64_t> ParseBytes(std::string_view until);
  Result<std::string> ParseAlgorithm(Kind kind);

  // Up to one of `until` or the end; moves on.
  std::string_view TakeUntil(std::string_view until) {
    const size_t end = std::min(text_.find_first_of(until, at_), text_.size());
    const std::string_view taken = text_.substr(at_, end - at_);
    at_ = end;
    return taken;
  }
  Status Wrong(size_t position, std::string why) const {
    return InvalidArgument("RABIT_ALLREDUCE_ALGORITHM is '" + std::string(text_) +
                           "': at position " + std::to_string(position + 1) + ": " +
                           std::move(why) +
                           "; write for example allreduce:0-64K@gather_all;allreduce:64K-inf@ring");
  }

  const std::string_view text_;
  const bool must_be_rank_ordered_;
  size_t at_ = 0;
};

Result<AlgorithmRules::Rule> AlgorithmRulesParser::ParseRule() {
  AlgorithmRules::Rule rule{Kind::kAllreduce, 0, std::numeric_limits<int64_t>::max(), {}};
  const size_t end = std::min(text_.find(';', at_), text_.size());
  if (text_.substr(at_, end - at_).find_first_of(":@") != std::string_view::npos) {
    RABIT_ASSIGN_OR_RETURN(rule.kind, ParseKind());
    const size_t range_start = at_;
    RABIT_ASSIGN_OR_RETURN(rule.low, ParseBytes("-@;"));
    if (at_ == text_.size() || text_[at_] != '-') return Wrong(at_, "'-' is missing");
    ++at_;
    RABIT_ASSIGN_OR_RETURN(rule.high, ParseBytes("@;"));
    if (at_ == text_.size() || text_[at_] != '@') return Wrong(at_, "'@' is missing");
    if (rule.low >= rule.high) return Wrong(range_start, "the range is empty");
    ++at_;
  }
  RABIT_ASSIGN_OR_RETURN(rule.algorithm, ParseAlgorithm(rule.kind));
  return rule;
}

Result<Kind> AlgorithmRulesParser::ParseKind() {
  const size_t start = at_;
  const std::string_view name = TakeUntil(":@;");
  for (Kind kind : kKindsWithChoice) {
    if (Name(kind) != name) continue;
    if (at_ == text_.size() || text_[at_] != ':') return Wrong(at_, "':' is missing");
    ++at_;
    return kind;
  }
  return Wrong(start, "unknown collective '" + std::string(name) + "'; known: " + KnownKinds());
}

Result<int64_t> AlgorithmRulesParser::ParseBytes(std::string_view until) {
  const size_t start = at_;
  const std::string_view word = TakeUntil(until);
  const std::optional<int64_t> bytes = ParseByteCount(word);
  if (bytes.has_value()) return *bytes;
  return Wrong(start, "'" + std::string(word) + "' is not a number of bytes");
}

Result<std::string> AlgorithmRulesParser::ParseAlgorithm(Kind kind) {
  const size_t start = at_;
  const std::string name(TakeUntil(";"));
  const std::vector<std::string_view> known = AlgorithmNames(kind);
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    return Wrong(start, "unknown " + std::string(Name(kind)) + " algorithm '" + name +
                            "'; known: " + JoinNames(known));
  }
  if (TraitsOf(kind).reduces && must_be_rank_ordered_ && !SumsInRankOrder(kind, name)) {
    return Wrong(start, "'" + name +
                            "' does not sum in rank order, which deterministic results need; use "
                            "direct or gather_all");
  }
  return name;
}

Result<AlgorithmRules> AlgorithmRules::Parse(std::string_view text, bool must_be_rank_ordered) {
  return AlgorithmRulesParser(text, must_be_rank_ordered).Parse();
}

std::string_view AlgorithmRules::Find(Kind kind, int64_t bytes) const {
  for (const Rule& rule : rules_) {
    if (rule.kind == kind && bytes >= rule.low && bytes < rule.high) return rule.algorithm;
  }
  return {};
}

}  // namespace rabit
