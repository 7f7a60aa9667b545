#include "engine/statistics.h"

#include <algorithm>

#include "engine/json_text.h"

namespace rabit {
namespace {

std::string Member(std::string_view key, int64_t value) {
  return "\"" + std::string(key) + "\":" + std::to_string(value);
}

}  // namespace

void Statistics::AddSubmitted(int64_t requests, uint64_t work_hash) {
  MutexLock lock(mutex_);
  submitted_ += requests;
  work_hash_ += work_hash;
}

void Statistics::AddNegotiation(int64_t tensors, int64_t waited_ns) {
  MutexLock lock(mutex_);
  agreed_ += tensors;
  negotiation_ns_ += waited_ns;
}

void Statistics::AddRejected(int64_t tensors) {
  MutexLock lock(mutex_);
  rejected_ += tensors;
}

void Statistics::AddCarried(int64_t bytes) {
  MutexLock lock(mutex_);
  carried_ += 1;
  carried_bytes_ += bytes;
}

void Statistics::AddBucket(const BucketRecord& record) {
  MutexLock lock(mutex_);
  Add(all_, record);
  if (record.kind == Kind::kAllreduce && record.bytes > 0) {
    shortest_ns_ = std::min(shortest_ns_, record.busy_ns);
  }
  Add(by_kind_[static_cast<size_t>(record.kind)], record);
  const auto add_to = [&](auto& by_name, std::string_view name) {
    auto found = by_name.find(name);
    if (found == by_name.end()) found = by_name.emplace(std::string(name), Totals()).first;
    Add(found->second, record);
  };
  add_to(by_backend_, record.backend);
  add_to(by_algorithm_, record.algorithm);
  add_to(by_codec_, record.codec);
}

LinkTotals Statistics::link_totals() const {
  const int64_t communicating_ns = clock_.totals().communicating_ns;
  MutexLock lock(mutex_);
  return {all_.bytes, communicating_ns, shortest_ns_};
}

void Statistics::Add(Totals& totals, const BucketRecord& record) {
  totals.tensors += record.tensors;
  totals.buckets += 1;
  totals.partitions += record.partitions;
  totals.bytes += record.bytes;
  totals.wire_bytes += record.wire_bytes;
  totals.busy_ns += record.busy_ns;
  totals.in_place += record.is_in_place ? 1 : 0;
}

std::string Statistics::Json(const Totals& totals) {
  return "{" + Member("tensors", totals.tensors) + "," + Member("buckets", totals.buckets) + "," +
         Member("partitions", totals.partitions) + "," + Member("bytes", totals.bytes) + "," +
         Member("wire_bytes", totals.wire_bytes) + "," + Member("busy_us", totals.busy_ns / 1000) +
         "," + Member("in_place", totals.in_place) + "}";
}

std::string Statistics::Json(const std::map<std::string, Totals, std::less<>>& by_name) {
  std::string text = "{";
  for (const auto& [name, totals] : by_name) {
    if (text.size() > 1) text += ",";
    text += JsonQuoted(name) + ":" + Json(totals);
  }
  return text + "}";
}

std::string Statistics::JsonMembers() const {
  const OverlapClock::Totals times = clock_.totals();
  const double hidden_share =
      times.communicating_ns == 0
          ? 0.0
          : 1.0 - static_cast<double>(times.both_ns) / static_cast<double>(times.communicating_ns);
  MutexLock lock(mutex_);
  std::map<std::string, Totals, std::less<>> by_kind;
  for (int kind = 0; kind < kKindCount; ++kind) {
    const Totals& totals = by_kind_[static_cast<size_t>(kind)];
    if (totals.buckets > 0) by_kind.emplace(Name(static_cast<Kind>(kind)), totals);
  }
  return Member("uptime_us", (NowNs() - started_ns_) / 1000) +
         ",\"work_hash\":" + std::to_string(work_hash_) + "," + Member("submitted", submitted_) +
         "," + Member("agreed", agreed_) + "," + Member("rejected", rejected_) + "," +
         Member("inlined", carried_) + "," + Member("inlined_bytes", carried_bytes_) + "," +
         Member("tensors", all_.tensors) + "," + Member("buckets", all_.buckets) + "," +
         Member("bytes", all_.bytes) + "," + Member("negotiation_us", negotiation_ns_ / 1000) +
         "," + Member("communication_us", times.communicating_ns / 1000) + "," +
         Member("blocked_us", times.waiting_ns / 1000) +
         ",\"hidden_share\":" + std::to_string(hidden_share) + ",\"totals\":" + Json(all_) +
         ",\"kinds\":" + Json(by_kind) + ",\"backends\":" + Json(by_backend_) +
         ",\"algorithms\":" + Json(by_algorithm_) + ",\"codecs\":" + Json(by_codec_);
}

}  // namespace rabit
