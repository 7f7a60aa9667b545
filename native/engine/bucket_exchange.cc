#include "engine/bucket_exchange.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "engine/averaging.h"
#include "engine/content_hash.h"
#include "engine/handle_table.h"

namespace rabit {
namespace {

// Without a limit of the user's: exchanges end when a peer is lost, and then without a deadline.
constexpr auto kNoTimeout = std::chrono::hours(24 * 365);

Deadline OperationDeadline(int64_t timeout_ms) {
  if (timeout_ms <= 0) return After(kNoTimeout);
  return After(std::chrono::milliseconds(timeout_ms));
}

}  // namespace

std::string DescribeTensors(const BucketJob& job) {
  std::string text(Name(job.bucket.kind));
  if (!job.items.empty()) text += " '" + job.items.front().tensor->ready->name + "'";
  if (job.items.size() > 1) text += " and " + std::to_string(job.items.size() - 1) + " more";
  return text;
}

BucketExchange::BucketExchange(const LaneServices& services, const BucketJob& job, Waiter waiter)
    : services_(services),
      job_(job),
      lane_{job.bucket.lane, Tag{0}, OperationDeadline(services.options.operation_timeout_ms),
            *job.group, waiter} {}

void BucketExchange::Open() {
  route_ = *job_.route;
  const Bucket& bucket = job_.bucket;
  const uint64_t hash = MixHash(MixHash(job_.hash, executor().name()), route_.algorithm);
  lane_.tag = MakeTag(bucket.lane, CheckedSequence(bucket.id, hash));
  // The engine thread calls Describe when it compares ranks that are stuck, so it reads only what
  // stays as it is until Close.
  services_.running.Enter(bucket.lane,
                          {ScheduleDigest::BucketsOf(bucket.lane_class), bucket.id, hash, {}},
                          [this] { return Describe(); });
}

void BucketExchange::EnterStream(const DevicePlace* place) {
  lane_.place = place;
  if (place == nullptr) return;
  entered_ns_ = NowNs();
  services_.statistics.clock().Enter(OverlapClock::kCommunicating);
}

void BucketExchange::LeaveStream() {
  if (lane_.place != nullptr) Leave(route_, entered_ns_, wire_bytes_);
  lane_.place = nullptr;
}

void BucketExchange::Drop() {
  // The clock counts who has entered: without this it would show communication for ever.
  if (pending_) Leave(pending_->route, pending_->begin_ns, pending_->wire_bytes);
  pending_.reset();
  LeaveStream();
}

void BucketExchange::Close() {
  for (const FailureScope scope : gone_from_) services_.failure.EndAfter(scope);
  gone_from_.clear();
  services_.running.Leave(job_.bucket.lane, job_.bucket.id);
}

// A backend that fails apart may fail while another one carries on the same bucket: from here on
// the bucket answers for both.
Status BucketExchange::GoTo(int32_t executor) {
  const int32_t last = std::exchange(executor_, executor);
  if (last < 0 || last == executor) return Status();
  const FailureScope scope = services_.ScopeOf(last);
  if (scope == kWholeEngine) return Status();
  const Status failed = services_.failure.GoOnAfter(scope);
  is_torn_ = !failed.ok();
  if (failed.ok()) gone_from_.push_back(scope);
  return failed;
}

FailureScope BucketExchange::failure_scope() const {
  if (is_torn_) return kWholeEngine;
  return services_.ScopeOf(executor_ < 0 ? route_.executor : executor_);
}

Status BucketExchange::Alltoall(const Work& work, Load load, ConstBytes in,
                                std::span<const int64_t> send_bytes, Bytes out,
                                std::span<const int64_t> receive_bytes) {
  const int64_t wire_bytes = std::accumulate(send_bytes.begin(), send_bytes.end(), int64_t{0}) -
                             send_bytes[static_cast<size_t>(lane_.group.my_index)];
  return Communicate(work, load, wire_bytes, [&](Backend& backend) {
    return backend.Alltoall(lane_, in, send_bytes, out, receive_bytes);
  });
}

Status BucketExchange::Settle() {
  if (!pending_) return Status();
  // `rest` may make another exchange, which is then the one that is pending.
  Pending pending = std::move(*pending_);
  pending_.reset();
  Status status = pending.operation.Wait(lane_.deadline);
  Leave(pending.route, pending.begin_ns, pending.wire_bytes);
  if (status.ok() && pending.rest) status = pending.rest();
  return status;
}

bool BucketExchange::WaitOver(Deadline until) {
  (void)pending_->operation.Wait(std::min(until, lane_.deadline));
  return pending_->operation.is_finished();
}

void BucketExchange::Leave(const Route& route, int64_t begin_ns, int64_t wire_bytes) {
  services_.statistics.clock().Leave(OverlapClock::kCommunicating);
  services_.record.Exchanged(job_, route, begin_ns, wire_bytes);
}

void BucketExchange::Trace(std::string_view stage, int64_t begin_ns) const {
  services_.record.Staged(job_, stage, begin_ns, NowNs());
}

std::string BucketExchange::Describe() const {
  return DescribeTensors(job_) + " (" + std::to_string(job_.load.bytes) + " bytes of " +
         std::string(Name(job_.bucket.dtype)) + " by " + std::string(route_.algorithm) + ", " +
         std::string(executor().name()) + ", lane " + std::to_string(job_.bucket.lane) + ")";
}

// Only its own backend reaches a device, so what is there stays with it, whatever rules say of
// parts; and what a part of host memory is routed to may not be that backend.
Result<Route> BucketExchange::RouteOf(const Work& work, Load load) const {
  if (&work == &job_.bucket && (load == job_.load || lane_.place != nullptr)) return route_;
  RABIT_ASSIGN_OR_RETURN(const Route route, services_.router.Of(work, load, *job_.group));
  return services_.BackendOf(route.executor).works_on_devices() ? route_ : route;
}

ReduceOp BucketExchange::wire_op() const {
  return lane_.place != nullptr ? job_.bucket.op : WireOp(job_.bucket.op);
}

double BucketExchange::input_scale() const {
  return lane_.place != nullptr ? 1.0 : job_.bucket.prescale;
}

Epilogue BucketExchange::epilogue() const {
  if (lane_.place != nullptr) return {};
  const Bucket& bucket = job_.bucket;
  return EpilogueOf(bucket.op, bucket.dtype, job_.group->size(), bucket.postscale);
}

// By what is agreed: a rank that has joined has no tensor on a device, and stages nothing.
SegmentLimits BucketExchange::limits() const {
  if (job_.bucket.device_kind != DeviceKind::kCpu || job_.items.size() == 1) return {};
  return {kAloneBytesMin, services_.router.JoinedBytesMax(route_, *job_.group)};
}

}  // namespace rabit
