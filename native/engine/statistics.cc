#include "engine/statistics.h"

#include <algorithm>

namespace rabit {
namespace {

// Codecs whose parameters are fitted to tensors have names without end.
constexpr size_t kNamesMax = 64;
constexpr std::string_view kOthers = "others";

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
    // Without a bound a job of many fitted codecs would grow its statistics, and every scrape, with
    // each step.
    if (found == by_name.end() && by_name.size() >= kNamesMax) {
      name = kOthers;
      found = by_name.find(name);
    }
    if (found == by_name.end()) found = by_name.emplace(std::string(name), Totals()).first;
    Add(found->second, record);
  };
  add_to(by_backend_, record.backend);
  add_to(by_algorithm_, record.algorithm);
  add_to(by_codec_, record.codec);
}

void Statistics::AddExchange(Kind kind, const Route& route, std::string_view executor,
                             int64_t bytes) {
  MutexLock lock(mutex_);
  const auto is_this = [&](const RouteTotals& each) {
    return each.kind == kind && each.executor == executor && each.algorithm == route.algorithm &&
           each.row == route.row;
  };
  auto found = std::find_if(by_route_.begin(), by_route_.end(), is_this);
  // Executor, algorithm and row are names with static storage, so the entry may keep views of them.
  if (found == by_route_.end()) {
    found = by_route_.insert(found, {kind, executor, route.algorithm, route.row});
  }
  found->exchanges += 1;
  found->bytes += bytes;
}

LinkTotals Statistics::link_totals() const {
  // Read before the lock is taken: the clock has a lock of its own, and no thread holds both.
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

void Statistics::Write(const Totals& totals, JsonWriter& json) {
  json.BeginObject().Member("tensors", totals.tensors).Member("buckets", totals.buckets);
  json.Member("partitions", totals.partitions).Member("bytes", totals.bytes);
  json.Member("wire_bytes", totals.wire_bytes).Member("busy_us", totals.busy_ns / 1000);
  json.Member("in_place", totals.in_place).EndObject();
}

void Statistics::Write(const ByName& by_name, JsonWriter& json) {
  json.BeginObject();
  for (const auto& [name, totals] : by_name) Write(totals, json.Key(name));
  json.EndObject();
}

void Statistics::WriteRoutes(JsonWriter& json) const {
  json.Key("routes").BeginArray();
  for (const RouteTotals& route : by_route_) {
    json.BeginObject().Member("kind", Name(route.kind)).Member("backend", route.executor);
    json.Member("algorithm", route.algorithm).Member("row", route.row);
    json.Member("exchanges", route.exchanges).Member("bytes", route.bytes).EndObject();
  }
  json.EndArray();
}

void Statistics::Write(JsonWriter& json) const {
  const OverlapClock::Totals times = clock_.totals();
  const double hidden_share =
      times.communicating_ns == 0
          ? 0.0
          : 1.0 - static_cast<double>(times.both_ns) / static_cast<double>(times.communicating_ns);
  MutexLock lock(mutex_);
  ByName by_kind;
  for (int kind = 0; kind < kKindCount; ++kind) {
    const Totals& totals = by_kind_[static_cast<size_t>(kind)];
    if (totals.buckets > 0) by_kind.emplace(Name(static_cast<Kind>(kind)), totals);
  }
  json.Member("uptime_us", (NowNs() - started_ns_) / 1000).Member("work_hash", work_hash_);
  json.Member("submitted", submitted_).Member("agreed", agreed_).Member("rejected", rejected_);
  json.Member("inlined", carried_).Member("inlined_bytes", carried_bytes_);
  json.Member("tensors", all_.tensors).Member("buckets", all_.buckets).Member("bytes", all_.bytes);
  json.Member("negotiation_us", negotiation_ns_ / 1000);
  json.Member("communication_us", times.communicating_ns / 1000);
  json.Member("blocked_us", times.waiting_ns / 1000).Member("hidden_share", hidden_share);
  Write(all_, json.Key("totals"));
  Write(by_kind, json.Key("kinds"));
  Write(by_backend_, json.Key("backends"));
  Write(by_algorithm_, json.Key("algorithms"));
  Write(by_codec_, json.Key("codecs"));
  WriteRoutes(json);
}

}  // namespace rabit
