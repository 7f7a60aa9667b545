#include "control/skew.h"

#include <algorithm>
#include <cstdio>
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

std::string SkewStatistics::JsonFields(const RecordTable& records) const {
  std::vector<std::pair<int64_t, int>> order;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].times > 0) order.emplace_back(-ranks_[rank].total_us, static_cast<int>(rank));
  }
  std::sort(order.begin(), order.end());
  std::string json = "\"waited_for\":[";
  for (const auto& [cost, index] : order) {
    const RankSkew& rank = ranks_[static_cast<size_t>(index)];
    if (json.back() != '[') json += ',';
    json += "{\"rank\":" + std::to_string(index) + ",\"times\":" + std::to_string(rank.times) +
            ",\"total_us\":" + std::to_string(rank.total_us) +
            ",\"max_us\":" + std::to_string(rank.max_us) +
            ",\"worst_tensor\":" + JsonText(rank.worst_tensor) + "}";
  }
  std::vector<const TensorRecord*> worst;
  for (const TensorRecord* record : records.named())
    if (record->skew_us_max > 0) worst.push_back(record);
  std::stable_sort(worst.begin(), worst.end(),
                   [](const auto* a, const auto* b) { return a->skew_us_max > b->skew_us_max; });
  if (worst.size() > kTensorsReported) worst.resize(kTensorsReported);
  json += "],\"skew\":[";
  for (const TensorRecord* record : worst) {
    if (json.back() != '[') json += ',';
    json += "{\"tensor\":" + JsonText(record->key.name) +
            ",\"max_us\":" + std::to_string(record->skew_us_max) +
            ",\"last_rank\":" + std::to_string(record->skew_rank) + "}";
  }
  return json + "]";
}

std::string WaitingLine(const TensorRecord& record, std::vector<int> absent, int64_t now_us) {
  const std::vector<int> present = record.arrived.ranks();
  std::sort(absent.begin(), absent.end());
  const Signature& signature = record.reference_is_agreed ? record.agreed : record.reference;
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s",
                static_cast<double>(now_us - record.first_us) * 1e-6);
  return "'" + record.key.name + "' (" + std::string(Name(signature.kind)) + " " +
         Describe(signature) + "): ready on " + RanksText(present) + ", waits " + seconds +
         " for " + RanksText(absent);
}

std::string JsonText(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      json += escaped;
    } else {
      json += c;
    }
  }
  return json + "\"";
}

}  // namespace rabit
