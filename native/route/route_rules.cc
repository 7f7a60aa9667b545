#include "route/route_rules.h"

#include <algorithm>
#include <utility>

#include "base/kind.h"
#include "collective/allreduce.h"
#include "route/algorithm_rules.h"

namespace rabit {
namespace {

// Known, and perhaps not part of this engine.
constexpr std::string_view kBackends[] = {"builtin", "mpi", "nccl", "ps"};

bool CanBeRouted(const KindTraits& traits) {
  return traits.kind == Kind::kBarrier || (traits.moves_data && traits.kind != Kind::kRecv);
}

std::string RoutedKinds() {
  std::vector<std::string_view> names = {"*"};
  for (const KindTraits& traits : kKindTraits) {
    if (CanBeRouted(traits)) names.push_back(Name(traits.kind));
  }
  return JoinNames(names);
}

std::vector<std::string_view> KnownAlgorithms(std::optional<Kind> kind, std::string_view backend) {
  std::vector<std::string_view> names;
  if (backend == "nccl") {
    if (kind == Kind::kAllreduce) names.push_back(kHierarchicalAlgorithm);
  } else if (kind.has_value()) {
    names = AlgorithmNames(*kind);
  }
  if (backend == "mpi" || backend == "nccl") names.push_back(kLibraryAlgorithm);
  return names;
}

}  // namespace

// Reads from left to right; `at_` is where an error is reported.
class RouteRulesParser {
 public:
  RouteRulesParser(std::string_view setting, std::string_view text, const RouteNames& names)
      : setting_(setting), text_(text), names_(names) {}

  Result<RouteRules> Parse() {
    RouteRules parsed;
    if (text_.empty()) return parsed;
    for (;;) {
      RABIT_ASSIGN_OR_RETURN(RouteRule rule, ParseRule());
      parsed.rules_.push_back(std::move(rule));
      if (at_ == text_.size()) return parsed;
      ++at_;  // the ';'
    }
  }

 private:
  Result<RouteRule> ParseRule();
  Status ParseKind(RouteRule& rule);
  Status ParseSizes(RouteRule& rule);
  Result<int64_t> ParseBytes(std::string_view word, size_t position) const;
  Status ParseBackend(RouteRule& rule);
  Status ParseAlgorithm(RouteRule& rule, std::string_view backend);

  // Up to one of `until` or the end; moves on.
  std::string_view TakeUntil(std::string_view until) {
    const size_t end = std::min(text_.find_first_of(until, at_), text_.size());
    const std::string_view taken = text_.substr(at_, end - at_);
    at_ = end;
    return taken;
  }
  bool IsAt(char c) const { return at_ < text_.size() && text_[at_] == c; }
  Status Wrong(size_t position, std::string why) const {
    return InvalidArgument(std::string(setting_) + " '" + std::string(text_) + "', position " +
                           std::to_string(position + 1) + ": " + std::move(why) +
                           "; write for example alltoall:*:mpi;allreduce:<64K:builtin/gather_all");
  }

  const std::string_view setting_;
  const std::string_view text_;
  const RouteNames& names_;
  size_t at_ = 0;
};

Result<RouteRule> RouteRulesParser::ParseRule() {
  RouteRule rule;
  RABIT_RETURN_IF_ERROR(ParseKind(rule));
  if (!IsAt(':')) return Wrong(at_, "':' and a backend are missing");
  ++at_;
  const size_t field_end = std::min(text_.find_first_of(":;", at_), text_.size());
  if (field_end < text_.size() && text_[field_end] == ':') {
    RABIT_RETURN_IF_ERROR(ParseSizes(rule));
    ++at_;  // the ':'
  }
  RABIT_RETURN_IF_ERROR(ParseBackend(rule));
  return rule;
}

Status RouteRulesParser::ParseKind(RouteRule& rule) {
  const size_t start = at_;
  const std::string_view name = TakeUntil(".:;");
  for (const KindTraits& traits : kKindTraits) {
    if (CanBeRouted(traits) && Name(traits.kind) == name) rule.kind = traits.kind;
  }
  if (!rule.kind.has_value() && name != "*") {
    return Wrong(start, "unknown collective '" + std::string(name) + "'; known: " + RoutedKinds());
  }
  if (!IsAt('.')) return Status();
  const size_t dtype_start = ++at_;
  const std::string_view dtype = TakeUntil(":;");
  std::vector<std::string_view> known;
  for (int32_t i = 0; i < kDTypeCount; ++i) {
    known.push_back(Name(static_cast<DType>(i)));
    if (known.back() == dtype) rule.dtype = static_cast<DType>(i);
  }
  if (rule.dtype.has_value()) return Status();
  return Wrong(dtype_start,
               "unknown type '" + std::string(dtype) + "'; known: " + JoinNames(known));
}

Status RouteRulesParser::ParseSizes(RouteRule& rule) {
  const size_t start = at_;
  std::string_view word = TakeUntil(":");
  if (word == "*") return Status();
  if (word.starts_with("<")) {
    RABIT_ASSIGN_OR_RETURN(rule.high, ParseBytes(word.substr(1), start + 1));
  } else if (word.starts_with(">=")) {
    RABIT_ASSIGN_OR_RETURN(rule.low, ParseBytes(word.substr(2), start + 2));
  } else if (const size_t dash = word.find('-'); dash != std::string_view::npos) {
    RABIT_ASSIGN_OR_RETURN(rule.low, ParseBytes(word.substr(0, dash), start));
    RABIT_ASSIGN_OR_RETURN(rule.high, ParseBytes(word.substr(dash + 1), start + dash + 1));
  } else {
    return Wrong(start,
                 "'" + std::string(word) + "' are no sizes: expected *, <64K, >=64K or 4K-64K");
  }
  if (rule.low >= rule.high) return Wrong(start, "no size is in '" + std::string(word) + "'");
  return Status();
}

Result<int64_t> RouteRulesParser::ParseBytes(std::string_view word, size_t position) const {
  const std::optional<int64_t> bytes = ParseByteCount(word);
  if (bytes.has_value()) return *bytes;
  return Wrong(position, "'" + std::string(word) + "' is not a number of bytes");
}

Status RouteRulesParser::ParseBackend(RouteRule& rule) {
  const size_t start = at_;
  const std::string name(TakeUntil("/;"));
  const auto found = std::find(names_.backends.begin(), names_.backends.end(), name);
  if (found == names_.backends.end()) {
    std::string ours;
    for (const std::string& each : names_.backends) ours += (ours.empty() ? "" : ",") + each;
    const auto known = std::find(std::begin(kBackends), std::end(kBackends), name);
    if (known == std::end(kBackends)) {
      return Wrong(start, "there is no backend '" + name + "'; known: " +
                              JoinNames({std::begin(kBackends), std::end(kBackends)}));
    }
    if (name == "ps") {
      return Wrong(start,
                   "this job runs without backend 'ps'; start summation servers with "
                   "'rabitrun -s 2', or add it with RABIT_BACKEND=" +
                       ours + ",ps");
    }
    return Wrong(start, "this job runs without backend '" + name + "': it has " + ours +
                            "; add it with RABIT_BACKEND=" + ours + "," + name);
  }
  rule.backend = static_cast<BackendId>(found - names_.backends.begin());
  if (!IsAt('/')) return Status();
  if (name == "ps") {
    return Wrong(at_, "backend 'ps' has no choice of algorithms; name it alone");
  }
  ++at_;
  return ParseAlgorithm(rule, name);
}

Status RouteRulesParser::ParseAlgorithm(RouteRule& rule, std::string_view backend) {
  const size_t start = at_;
  rule.algorithm = TakeUntil(";");
  const std::vector<std::string_view> known = KnownAlgorithms(rule.kind, backend);
  const std::string kind(rule.kind.has_value() ? Name(*rule.kind) : "*");
  if (known.empty())
    return Wrong(start, kind + " has no choice of algorithms; name the backend alone");
  if (std::find(known.begin(), known.end(), rule.algorithm) == known.end()) {
    return Wrong(start, "unknown " + kind + " algorithm '" + rule.algorithm +
                            "'; known: " + JoinNames(known));
  }
  const bool reduces = rule.kind.has_value() && TraitsOf(*rule.kind).reduces;
  // What the library does in another order is left out where it matters; see MpiRows.
  if (!names_.is_deterministic || !reduces || rule.algorithm == kLibraryAlgorithm) return Status();
  if (SumsInRankOrder(*rule.kind, rule.algorithm)) return Status();
  return Wrong(start, "'" + rule.algorithm +
                          "' does not sum in rank order, which deterministic results need");
}

Result<RouteRules> RouteRules::Parse(std::string_view setting, std::string_view text,
                                     const RouteNames& names) {
  return RouteRulesParser(setting, text, names).Parse();
}

bool RouteRule::Fits(const Work& work, int64_t bytes) const {
  const Kind work_kind = work.kind == Kind::kRecv ? Kind::kSend : work.kind;
  if (kind.has_value() && *kind != work_kind) return false;
  if (dtype.has_value() && *dtype != work.dtype) return false;
  if (work.backend != kAnyBackend && work.backend != backend) return false;
  if (work.backend == kAnyBackend && work.Avoids(backend)) return false;
  return bytes >= low && bytes < high;
}

const RouteRule* RouteRules::Find(const Work& work, int64_t bytes) const {
  for (const RouteRule& rule : rules_) {
    if (rule.Fits(work, bytes)) return &rule;
  }
  return nullptr;
}

bool RouteRules::NameAlgorithmOf(BackendId backend) const {
  return std::any_of(rules_.begin(), rules_.end(), [backend](const RouteRule& rule) {
    return rule.backend == backend && !rule.algorithm.empty();
  });
}

}  // namespace rabit
