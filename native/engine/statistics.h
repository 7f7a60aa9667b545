// Statistics: counters of one engine.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/json_writer.h"
#include "base/mutex.h"
#include "engine/overlap_clock.h"
#include "route/route.h"
#include "schedule/limit_choice.h"

namespace rabit {

inline constexpr int kKindCount = 13;

// Thread-safe.
class Statistics {
 public:
  struct BucketRecord {
    Kind kind = Kind::kAllreduce;
    int64_t tensors = 0;  // tensors whose last partition is in the bucket
    int64_t partitions = 0;
    int64_t bytes = 0;
    int64_t wire_bytes = 0;  // after the codec
    int64_t busy_ns = 0;
    bool is_in_place = false;
    std::string_view backend;
    std::string_view algorithm;
    std::string_view codec;
  };

  // work_hash: of the requests' kinds, types and sizes.  All are added up, whatever their order and
  // names, so that the difference between two steps tells one model from another.
  void AddSubmitted(int64_t requests, uint64_t work_hash);
  void AddBucket(const BucketRecord& record);
  // An exchange that takes this route.
  void AddExchange(Kind kind, const Route& route, std::string_view executor, int64_t bytes);
  void AddNegotiation(int64_t tensors, int64_t waited_ns);
  void AddRejected(int64_t tensors);
  // A request of which nothing was left to exchange.
  void AddCarried(int64_t bytes);

  LinkTotals link_totals() const;

  // Around the exchange of a bucket, and around what a caller waits for.
  OverlapClock& clock() { return clock_; }

  // Members of an object.
  void Write(JsonWriter& json) const;

 private:
  struct Totals {
    int64_t tensors = 0;
    int64_t buckets = 0;
    int64_t partitions = 0;
    int64_t bytes = 0;
    int64_t wire_bytes = 0;
    int64_t busy_ns = 0;
    int64_t in_place = 0;
  };
  struct RouteTotals {
    Kind kind;
    std::string_view executor;
    std::string_view algorithm;
    std::string_view row;
    int64_t exchanges = 0;
    int64_t bytes = 0;
  };
  using ByName = std::map<std::string, Totals, std::less<>>;
  static void Add(Totals& totals, const BucketRecord& record);
  static void Write(const Totals& totals, JsonWriter& json);
  static void Write(const ByName& by_name, JsonWriter& json);
  void WriteRoutes(JsonWriter& json) const RABIT_REQUIRES(mutex_);

  const int64_t started_ns_ = NowNs();
  OverlapClock clock_;

  mutable Mutex mutex_;
  int64_t submitted_ RABIT_GUARDED_BY(mutex_) = 0;
  uint64_t work_hash_ RABIT_GUARDED_BY(mutex_) = 0;
  int64_t agreed_ RABIT_GUARDED_BY(mutex_) = 0;
  int64_t rejected_ RABIT_GUARDED_BY(mutex_) = 0;
  int64_t carried_ RABIT_GUARDED_BY(mutex_) = 0;
  int64_t carried_bytes_ RABIT_GUARDED_BY(mutex_) = 0;
  int64_t negotiation_ns_ RABIT_GUARDED_BY(mutex_) = 0;
  Totals all_ RABIT_GUARDED_BY(mutex_);
  int64_t shortest_ns_ RABIT_GUARDED_BY(mutex_) = INT64_MAX;  // allreduce
  std::array<Totals, kKindCount> by_kind_ RABIT_GUARDED_BY(mutex_);
  ByName by_backend_ RABIT_GUARDED_BY(mutex_);
  ByName by_algorithm_ RABIT_GUARDED_BY(mutex_);
  ByName by_codec_ RABIT_GUARDED_BY(mutex_);
  // A handful: looking through them is faster than building a name.
  std::vector<RouteTotals> by_route_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit
