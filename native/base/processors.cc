#include "base/processors.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstddef>

namespace rabit {
namespace {

constexpr int kProcessorsMax = 1 << 16;

bool ReadNumber(std::string_view& text, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool Skip(std::string_view& text, char wanted) {
  if (text.empty() || text.front() != wanted) return false;
  text.remove_prefix(1);
  return true;
}

bool ReadRanges(std::string_view& text, Processors& processors) {
  do {
    int first = 0;
    if (!ReadNumber(text, first)) return false;
    int last = first;
    if (Skip(text, '-') && !ReadNumber(text, last)) return false;
    // The text comes from another rank: without an order and a bound it could make this rank
    // allocate without end.
    const bool ascends = processors.empty() || first > processors.back();
    if (first < 0 || last < first || last >= kProcessorsMax || !ascends) return false;
    for (int each = first; each <= last; ++each) processors.push_back(each);
  } while (Skip(text, ','));
  return true;
}

// Whether every rank can have `demand` processors of its own: a matching of ranks with processors,
// found by augmenting paths.
class Matching {
 public:
  Matching(std::span<const Processors> ranks, int processors)
      : ranks_(ranks), owner_(static_cast<size_t>(processors), -1) {}

  bool Serves(int demand) {
    std::fill(owner_.begin(), owner_.end(), -1);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (int i = 0; i < demand; ++i) {
        std::vector<bool> tried(owner_.size());
        if (!Find(static_cast<int>(rank), tried)) return false;
      }
    }
    return true;
  }

 private:
  bool Find(int rank, std::vector<bool>& tried) {
    const Processors& allowed = ranks_[static_cast<size_t>(rank)];
    for (const int each : allowed) {
      if (owner_[static_cast<size_t>(each)] >= 0) continue;
      owner_[static_cast<size_t>(each)] = rank;
      return true;
    }
    for (const int each : allowed) {
      const auto at = static_cast<size_t>(each);
      if (tried[at] || owner_[at] == rank) continue;
      tried[at] = true;
      // The owner moves to another processor if it can; `tried` keeps the search from going in a
      // circle.
      if (!Find(owner_[at], tried)) continue;
      owner_[at] = rank;
      return true;
    }
    return false;
  }

  const std::span<const Processors> ranks_;
  std::vector<int> owner_;  // processor -> rank, -1: free
};

}  // namespace

Processors FindProcessors() {
  Processors found;
  for (int room = 1024; room <= kProcessorsMax; room *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(room);
    std::vector<std::byte> mask(bytes);
    auto* const set = reinterpret_cast<cpu_set_t*>(mask.data());
    // Fails while the mask is narrower than the kernel's.
    if (::sched_getaffinity(0, bytes, set) != 0) continue;
    for (int each = 0; each < room; ++each) {
      if (CPU_ISSET_S(each, bytes, set)) found.push_back(each);
    }
    break;
  }
  if (found.empty()) found.push_back(0);
  return found;
}

std::string ToText(const Processors& processors) {
  std::string text;
  for (size_t i = 0; i < processors.size(); ++i) {
    const int first = processors[i];
    while (i + 1 < processors.size() && processors[i + 1] == processors[i] + 1) ++i;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (processors[i] != first) text += "-" + std::to_string(processors[i]);
  }
  return text;
}

Result<Processors> ParseProcessors(std::string_view text) {
  Processors processors;
  std::string_view rest = text;
  if (ReadRanges(rest, processors) && rest.empty()) return processors;
  return InvalidArgument("'" + std::string(text.substr(0, 100)) +
                         "' is no list of processors such as 0-3,8");
}

HostCores ShareCores(std::span<const Processors> ranks) {
  Processors all;
  size_t least = ranks.front().size();
  for (const Processors& each : ranks) {
    least = std::min(least, each.size());
    all.insert(all.end(), each.begin(), each.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  HostCores cores;
  cores.ranks = static_cast<int>(ranks.size());
  cores.total = static_cast<int>(all.size());
  cores.least = static_cast<int>(least);
  cores.each = cores.total / cores.ranks;
  Matching matching(ranks, all.back() + 1);
  while (cores.each > 0 && !matching.Serves(cores.each)) --cores.each;
  return cores;
}

}  // namespace rabit
