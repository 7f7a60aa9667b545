#include "base/tree_plan.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <span>
#include <string>

namespace rabit {
namespace {

// A tree has two tags, and a tag 16 bits for the steps of a collective.
constexpr int64_t kTreesMax = 1 << 14;
constexpr int64_t kWeightMax = 1 << 30;

struct PlannedKind {
  std::string_view name;
  Kind kind;
  bool has_up;
  bool has_down;
};

constexpr PlannedKind kPlannedKinds[] = {
    {"allreduce", Kind::kAllreduce, true, true},
    {"broadcast", Kind::kBroadcast, false, true},
    {"reduce", Kind::kReduce, true, false},
    {"allgather", Kind::kAllgather, false, true},
    {"reducescatter", Kind::kReduceScatter, true, false},
};

std::vector<std::string_view> WordsOf(std::string_view line) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    if (end > at) words.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

std::optional<int64_t> NumberIn(std::string_view word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

// A parent is nearer to the root than the member that has it, and so is its part: the parts form a
// tree whatever the ranks of each do.
std::vector<int> ParentsBetween(const std::vector<int>& parents, std::span<const int> part_of,
                                int parts) {
  std::vector<int> between(static_cast<size_t>(parts), -1);
  std::vector<int64_t> nearest(between.size(), std::numeric_limits<int64_t>::max());
  for (size_t position = 0; position < parents.size(); ++position) {
    const auto part = static_cast<size_t>(part_of[position]);
    const int64_t hops = HopsToRoot(parents, static_cast<int>(position));
    if (hops >= nearest[part]) continue;
    nearest[part] = hops;
    between[part] = hops == 0 ? -1 : part_of[static_cast<size_t>(parents[position])];
  }
  return between;
}

}  // namespace

int64_t HopsToRoot(const std::vector<int>& parents, int position) {
  int64_t hops = 0;
  if (parents.empty()) return hops;
  for (int at = position; parents[static_cast<size_t>(at)] >= 0; ++hops) {
    at = parents[static_cast<size_t>(at)];
  }
  return hops;
}

class TreePlanParser {
 public:
  explicit TreePlanParser(int size) : size_(size), plan_(std::make_shared<TreePlan>()) {
    plan_->size_ = size;
  }

  Result<std::shared_ptr<const TreePlan>> Run(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      ++line_;
      RABIT_RETURN_IF_ERROR(Line(WordsOf(text.substr(at, end - at))));
      at = end + 1;
    }
    if (!has_size_) return Bad("there is no line 'size'");
    RABIT_RETURN_IF_ERROR(CheckRoots());
    return std::shared_ptr<const TreePlan>(std::move(plan_));
  }

 private:
  Status Bad(const std::string& what) const {
    return InvalidArgument("a plan, line " + std::to_string(line_) + ": " + what +
                           "; write the plan again with 'rabitrun plan -o'");
  }

  Status Line(const std::vector<std::string_view>& words) {
    if (words.empty()) return Status();
    if (words[0] == "bytes_min") return Number(words, plan_->bytes_min_);
    if (words[0] == "pipeline_bytes") return Number(words, plan_->pipeline_bytes_);
    if (words[0] == "wide_sums") return Number(words, plan_->wide_sums_);
    if (words[0] == "size") return Size(words);
    if (words[0] == "order") return Order(words);
    for (const PlannedKind& planned : kPlannedKinds) {
      if (words[0] == planned.name) return Tree(planned, words);
    }
    return Bad("'" + std::string(words[0]) + "' is unknown");
  }

  Status Number(const std::vector<std::string_view>& words, int64_t& into) const {
    const std::optional<int64_t> value = words.size() == 2 ? NumberIn(words[1]) : std::nullopt;
    if (!value.has_value() || *value < 0) return Bad("expected one number, 0 or more");
    into = *value;
    return Status();
  }

  Status Size(const std::vector<std::string_view>& words) {
    int64_t size = 0;
    RABIT_RETURN_IF_ERROR(Number(words, size));
    has_size_ = true;
    if (size == size_) return Status();
    return Bad("it is of " + std::to_string(size) + " ranks, and the group has " +
               std::to_string(size_));
  }

  Status Order(const std::vector<std::string_view>& words) {
    std::vector<bool> has(static_cast<size_t>(size_));
    for (size_t i = 1; i < words.size(); ++i) {
      const std::optional<int64_t> rank = NumberIn(words[i]);
      if (!rank.has_value() || *rank < 0 || *rank >= size_ || has[static_cast<size_t>(*rank)]) {
        return Bad("'" + std::string(words[i]) + "' is no rank, or stands in the order twice");
      }
      has[static_cast<size_t>(*rank)] = true;
      plan_->order_.push_back(static_cast<int>(*rank));
    }
    if (plan_->order_.size() == has.size()) return Status();
    return Bad("the order has " + std::to_string(plan_->order_.size()) + " ranks");
  }

  Status Tree(const PlannedKind& planned, const std::vector<std::string_view>& words) {
    const auto each = static_cast<size_t>(size_) + 1;
    const size_t expected = 3 + each * (planned.has_up ? 1 : 0) + each * (planned.has_down ? 1 : 0);
    if (words.size() != expected) {
      return Bad(std::to_string(words.size()) + " words, and a tree of " +
                 std::string(planned.name) + " has " + std::to_string(expected));
    }
    PlannedTree tree;
    const std::optional<int64_t> root = NumberIn(words[1]), weight = NumberIn(words[2]);
    if (!root.has_value() || *root < 0 || *root >= size_) return Bad("the root is no rank");
    if (!weight.has_value() || *weight < 1 || *weight > kWeightMax) return Bad("a wrong weight");
    tree.root = static_cast<int>(*root);
    tree.weight = *weight;
    std::span<const std::string_view> rest(words);
    rest = rest.subspan(3);
    if (planned.has_up) RABIT_RETURN_IF_ERROR(Parents("up", tree.root, rest, tree.up));
    if (planned.has_down) RABIT_RETURN_IF_ERROR(Parents("down", tree.root, rest, tree.down));
    if (++trees_ > kTreesMax) return Bad("more than " + std::to_string(kTreesMax) + " trees");
    auto& of_kind = plan_->trees_[static_cast<size_t>(planned.kind)];
    if (of_kind.empty()) of_kind.resize(static_cast<size_t>(size_));
    const int place = planned.kind == Kind::kAllreduce ? 0 : tree.root;
    of_kind[static_cast<size_t>(place)].push_back(std::move(tree));
    return Status();
  }

  // Takes the word `way` and one parent for each rank off `words`.
  Status Parents(std::string_view way, int root, std::span<const std::string_view>& words,
                 std::vector<int>& parents) const {
    if (words[0] != way) return Bad("expected '" + std::string(way) + "'");
    for (int rank = 0; rank < size_; ++rank) {
      const std::optional<int64_t> parent = NumberIn(words[1 + static_cast<size_t>(rank)]);
      const bool is_right = parent.has_value() && *parent < size_ && *parent != rank &&
                            (rank == root ? *parent == -1 : *parent >= 0);
      if (!is_right) return Bad("rank " + std::to_string(rank) + " has a wrong parent");
      parents.push_back(static_cast<int>(*parent));
    }
    for (int rank = 0; rank < size_; ++rank) {
      int at = rank;
      for (int hops = 0; at != root && hops < size_; ++hops) at = parents[static_cast<size_t>(at)];
      if (at != root) return Bad("rank " + std::to_string(rank) + " never reaches the root");
    }
    words = words.subspan(1 + static_cast<size_t>(size_));
    return Status();
  }

  // Every rank brings a part to a gathering, so that it has a tree for each or none at all.
  Status CheckRoots() const {
    for (const Kind kind : {Kind::kAllgather, Kind::kReduceScatter}) {
      const auto& of_kind = plan_->trees_[static_cast<size_t>(kind)];
      for (size_t root = 0; root < of_kind.size(); ++root) {
        if (of_kind[root].empty()) return Bad("rank " + std::to_string(root) + " has no tree");
      }
    }
    return Status();
  }

  const int size_;
  std::shared_ptr<TreePlan> plan_;
  int64_t line_ = 0;
  int64_t trees_ = 0;
  bool has_size_ = false;
};

Result<std::shared_ptr<const TreePlan>> TreePlan::Parse(std::string_view text, int size) {
  return TreePlanParser(size).Run(text);
}

std::shared_ptr<const TreePlan> TreePlan::Between(std::span<const int> part_of, int parts) const {
  auto between = std::make_shared<TreePlan>();
  between->size_ = parts;
  between->bytes_min_ = bytes_min_;
  between->pipeline_bytes_ = pipeline_bytes_;
  between->wide_sums_ = wide_sums_;
  for (const int position : order_) {
    const int part = part_of[static_cast<size_t>(position)];
    const auto found = std::find(between->order_.begin(), between->order_.end(), part);
    if (found == between->order_.end()) between->order_.push_back(part);
  }
  if (!Has(Kind::kAllreduce, 0)) return between;
  auto& trees = between->trees_[static_cast<size_t>(Kind::kAllreduce)].emplace_back();
  for (const PlannedTree& tree : Trees(Kind::kAllreduce, 0)) {
    trees.push_back({part_of[static_cast<size_t>(tree.root)], tree.weight,
                     ParentsBetween(tree.up, part_of, parts),
                     ParentsBetween(tree.down, part_of, parts)});
  }
  return between;
}

bool TreePlan::Has(Kind kind, int root) const {
  const auto& of_kind = trees_[static_cast<size_t>(kind)];
  if (of_kind.empty()) return false;
  const bool is_rooted = kind == Kind::kBroadcast || kind == Kind::kReduce;
  return !is_rooted || !of_kind[static_cast<size_t>(root)].empty();
}

bool TreePlan::HasOneTreeEach(Kind kind) const {
  const auto& of_kind = trees_[static_cast<size_t>(kind)];
  return std::all_of(of_kind.begin(), of_kind.end(),
                     [](const auto& trees) { return trees.size() <= 1; });
}

const std::vector<PlannedTree>& TreePlan::Trees(Kind kind, int root) const {
  return trees_[static_cast<size_t>(kind)][static_cast<size_t>(kind == Kind::kAllreduce ? 0 : root)];
}

}  // namespace rabit
