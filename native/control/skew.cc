#include "control/skew.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "control/crosscheck.h"

namespace rabit {
namespace {

constexpr size_t kTensorsReported = 10;
// More than tensors that wait for one rank at different times while one tensor waits.
constexpr size_t kSpansKept = 256;

std::string RanksText(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + RankList(ranks);
}

}  // namespace

void RankSkew::Wait(WaitSpan span) {
  // Several tensors wait at once: the spans that this one covers or meets become part of it.
  while (!recent.empty() && recent.back().end_us >= span.begin_us) {
    total_us -= recent.back().end_us - recent.back().begin_us;
    span.begin_us = std::min(span.begin_us, recent.back().begin_us);
    recent.pop_back();
  }
  total_us += span.end_us - span.begin_us;
  recent.push_back(span);
  if (recent.size() > kSpansKept) recent.pop_front();
}

void SkewStatistics::Add(TensorRecord& record) {
  if (record.members->size() < 2) return;
  RankSkew& rank = ranks_[static_cast<size_t>(record.last_rank)];
  const int64_t waited_us = record.last_us - record.before_last_us;
  ++rank.times;
  rank.Wait({.begin_us = record.before_last_us, .end_us = record.last_us});
  if (waited_us > rank.max_us || rank.times == 1) {
    rank.max_us = waited_us;
    rank.worst_tensor = record.key.name;
  }
  if (const int64_t skew_us = record.last_us - record.first_us; skew_us > record.skew_us_max) {
    record.skew_us_max = skew_us;
    record.skew_rank = record.last_rank;
  }
}

void SkewStatistics::Write(const RecordTable& records, JsonWriter& json) const {
  std::vector<std::pair<int64_t, int>> order;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].times > 0) order.emplace_back(-ranks_[rank].total_us, static_cast<int>(rank));
  }
  std::sort(order.begin(), order.end());
  json.Key("waited_for").BeginArray();
  for (const auto& [cost, index] : order) {
    const RankSkew& rank = ranks_[static_cast<size_t>(index)];
    json.BeginObject().Member("rank", index).Member("times", rank.times);
    json.Member("total_us", rank.total_us).Member("max_us", rank.max_us);
    json.Member("worst_tensor", rank.worst_tensor).EndObject();
  }
  json.EndArray();
  std::vector<const TensorRecord*> worst;
  records.ForEachNamed([&worst](const TensorRecord& record) {
    if (record.skew_us_max > 0) worst.push_back(&record);
  });
  std::stable_sort(worst.begin(), worst.end(),
                   [](const auto* a, const auto* b) { return a->skew_us_max > b->skew_us_max; });
  if (worst.size() > kTensorsReported) worst.resize(kTensorsReported);
  json.Key("skew").BeginArray();
  for (const TensorRecord* record : worst) {
    json.BeginObject().Member("tensor", record->key.name).Member("max_us", record->skew_us_max);
    json.Member("last_rank", record->skew_rank).EndObject();
  }
  json.EndArray();
}

std::string WaitingLine(const TensorRecord& record, std::vector<int> absent, int64_t now_us) {
  const std::vector<int> present = record.arrived.ranks();
  std::sort(absent.begin(), absent.end());
  const Signature& signature = record.reference_is_agreed ? record.agreed : record.reference;
  const std::string waited = InSeconds(std::chrono::microseconds(now_us - record.first_us));
  return "'" + record.key.name + "' (" + std::string(Name(signature.kind)) + " " +
         Describe(signature) + "): ready on " + RanksText(present) + ", waits " + waited +
         " for " + RanksText(absent);
}

}  // namespace rabit
