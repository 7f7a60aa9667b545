#include "schedule/lane_classes.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace rabit {

LaneClasses::LaneClasses(const ScheduleLimits& limits, LaneClassOptions options)
    : options_(std::move(options)),
      limits_(limits),
      classes_(options_.names.size(), CreditWindow(limits.credit_bytes)) {
  RABIT_CHECK(size() >= 1 && size() <= kLaneClassesMax, "an engine has 1 to 4 lane classes");
  RABIT_CHECK(size() == 1 || options_.class_of != nullptr, "nobody says what runs in which class");
}

void LaneClasses::SetLimits(const ScheduleLimits& limits) {
  limits_ = limits;
  for (CreditWindow& window : classes_) window.SetLimit(limits.credit_bytes);
}

void LaneClasses::Return(const BucketCounts& done) {
  for (int32_t i = 0; i < size(); ++i) classes_[static_cast<size_t>(i)].Return(done[i]);
}

std::optional<Bucket> LaneClasses::TryIssue(const ScheduledTensor& work, int64_t bytes) {
  const int32_t lane_class = Of(work, bytes);
  CreditWindow& window = classes_[static_cast<size_t>(lane_class)];
  // A message loads two ranks: counted, it would hold up those of all other pairs.
  const int64_t credit = TraitsOf(work.kind).is_pair ? 0 : bytes;
  if (!window.Admits(credit)) return std::nullopt;
  // Numbers are given out in one order on all ranks; the lane follows from the number, so it needs
  // no agreement.
  const uint64_t id = window.next_id();
  const auto lanes = static_cast<uint64_t>(LanesOf(lane_class));
  const auto lane = static_cast<int32_t>(id % lanes) + lane_class * options_.lanes_started;
  window.Issue(credit);
  return Bucket{work, id, lane_class, lane, work.joined, {}};
}

int32_t LaneClasses::LanesOf(int32_t lane_class) const {
  return lane_class == options_.ordered_class ? 1 : std::max(limits_.lanes, 1);
}

void LaneClasses::WriteStatistics(int32_t lane_class, JsonWriter& json) const {
  const CreditWindow& window = classes_[static_cast<size_t>(lane_class)];
  json.Member("lanes", LanesOf(lane_class)).Member("credit_bytes", limits_.credit_bytes);
  json.Member("issued", window.next_id()).Member("in_flight", window.in_flight());
  json.Member("in_flight_bytes", window.in_flight_bytes());
}

}  // namespace rabit
