#include "engine/bucket_run.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "arithmetic/reduce.h"
#include "engine/averaging.h"
#include "engine/content_hash.h"
#include "engine/handle_table.h"

namespace rabit {
namespace {

constexpr auto kNoTimeout = std::chrono::hours(24 * 365);

Deadline OperationDeadline(int64_t timeout_ms) {
  if (timeout_ms <= 0) return After(kNoTimeout);
  return After(std::chrono::milliseconds(timeout_ms));
}

// Whether the backend takes the tensors where they are.
bool RunsOnDevice(const LaneServices& services, const BucketJob& job) {
  if (job.bucket.device_kind == DeviceKind::kCpu || !job.route.ok()) return false;
  return services.backends[static_cast<size_t>(job.route->executor)]->works_on_devices();
}

}  // namespace

std::string DescribeBucket(const BucketJob& job, int rank) {
  std::string text(Name(job.bucket.kind));
  if (!job.items.empty()) text += " '" + job.items.front().tensor->ready->name + "'";
  if (job.items.size() > 1) text += " and " + std::to_string(job.items.size() - 1) + " more";
  return text + " on rank " + std::to_string(rank);
}

BucketRun::BucketRun(const LaneServices& services, const BucketJob& job, const BucketMemory& memory,
                     Waiter waiter)
    : services_(services),
      job_(job),
      bucket_(job.bucket),
      group_(*job.group),
      buffer_(memory.buffer),
      staged_(memory.staged),
      on_device_(memory.on_device),
      is_on_device_(RunsOnDevice(services, job)),
      is_staged_(!is_on_device_ && StagedBucket::IsNeeded(job)),
      lane_{bucket_.lane, Tag{0}, OperationDeadline(services.options.operation_timeout_ms), group_,
            waiter} {
  for (const BucketItem& item : job_.items) count_ += item.partition.count;
}

Status BucketRun::Prepare() {
  if (!is_staged_) return Status();
  return staged_.CopyIn(services_.devices, job_, services_.rank, lane_.deadline);
}

Status BucketRun::Begin() {
  started_ns_ = NowNs();
  if (!job_.route.ok()) return job_.route.status();
  route_ = *job_.route;
  for (const BucketItem& item : job_.items) {
    if (item.request() == nullptr) continue;
    services_.record.Started(item.request()->handle.value, executor().name(), route_.algorithm,
                             bucket_.lane, started_ns_);
  }
  if (services_.timeline.is_active()) {
    for (const BucketItem& item : job_.items) {
      services_.timeline.Span(TimelineRow(bucket_.kind, item.tensor->ready->name), "QUEUE",
                              item.tensor->agreed_ns, started_ns_);
    }
  }
  Enter();
  Status status = is_staged_ ? staged_.Wait(lane_.deadline) : Status();
  if (status.ok()) status = is_on_device_ ? RunOnDevice() : RunAll();
  if (is_staged_ && status.ok()) status = Settle();
  if (is_staged_ && status.ok()) status = staged_.CopyOut(job_, services_.rank);
  is_copying_ = is_staged_ && status.ok();
  if (!status.ok() && pending_) {
    Leave(pending_->route, pending_->begin_ns, pending_->wire_bytes);
    pending_.reset();
  }
  if (!is_pending()) End();
  return status;
}

Status BucketRun::RunAll() {
  const bool is_reduction = bucket_.kind == Kind::kAllreduce || bucket_.kind == Kind::kReduce;
  if (is_reduction) return RunReduction();
  return bucket_.even_parts > 0 ? RunParts() : RunEach();
}

Status BucketRun::RunOnDevice() {
  RABIT_RETURN_IF_ERROR(on_device_.Begin(services_.devices, job_, lane_.deadline));
  on_device_.place().factor = bucket_.prescale * bucket_.postscale;
  lane_.place = &on_device_.place();
  services_.statistics.clock().Enter(OverlapClock::kCommunicating);
  const Status status = RunAll();
  // Also behind what was put there before something failed.
  const Status recorded = on_device_.Record();
  is_on_stream_ = status.ok() && recorded.ok();
  if (is_on_stream_) return Status();
  const Status why = status.ok() ? recorded : status;
  on_device_.GiveUp(executor(), why);
  Leave(route_, started_ns_, wire_bytes_);
  return why;
}

Status BucketRun::FinishOnDevice() {
  const Status status = on_device_.Wait(executor(), group_, lane_.deadline);
  if (status.code() == Code::kTimedOut) on_device_.GiveUp(executor(), status);
  Leave(route_, started_ns_, wire_bytes_);
  return status;
}

const DeviceEvent* BucketRun::ResultOf(const BucketItem& item) const {
  if (is_on_stream_) return CanReachOutput(item) ? &on_device_.event() : nullptr;
  return is_copying_ ? staged_.ResultOf(item) : nullptr;
}

bool BucketRun::WaitOver(Deadline until) {
  if (is_on_stream_) {
    const Deadline next = std::min(until, lane_.deadline);
    return on_device_.IsOver(executor(), group_, next) ||
           std::chrono::steady_clock::now() >= lane_.deadline;
  }
  if (is_copying_) {
    return staged_.Wait(std::min(until, lane_.deadline)).code() != Code::kTimedOut ||
           std::chrono::steady_clock::now() >= lane_.deadline;
  }
  (void)pending_->operation.Wait(std::min(until, lane_.deadline));
  return pending_->operation.is_finished() || std::chrono::steady_clock::now() >= lane_.deadline;
}

Status BucketRun::Finish() {
  const Status status = is_on_stream_ ? FinishOnDevice()
                        : is_copying_ ? staged_.Wait(lane_.deadline)
                                      : Settle();
  End();
  return status;
}

Status BucketRun::GoTo(int32_t executor) {
  const int32_t last = std::exchange(executor_, executor);
  if (last < 0 || last == executor) return Status();
  const FailureScope scope = services_.ScopeOf(last);
  if (scope == kWholeEngine) return Status();
  const Status failed = services_.failure.GoOnAfter(scope);
  is_torn_ = !failed.ok();
  if (failed.ok()) gone_from_.push_back(scope);
  return failed;
}

FailureScope BucketRun::failure_scope() const {
  if (is_torn_) return kWholeEngine;
  return services_.ScopeOf(executor_ < 0 ? route_.executor : executor_);
}

void BucketRun::End() {
  for (const FailureScope each : gone_from_) services_.failure.EndAfter(each);
  gone_from_.clear();
  services_.running.Leave(bucket_.lane, bucket_.id);
  Record();
}

Status BucketRun::Settle() {
  if (!pending_) return Status();
  Pending pending = std::move(*pending_);
  pending_.reset();
  Status status = pending.operation.Wait(lane_.deadline);
  Leave(pending.route, pending.begin_ns, pending.wire_bytes);
  if (status.ok() && pending.rest) status = pending.rest();
  return status;
}

void BucketRun::Leave(const Route& route, int64_t begin_ns, int64_t wire_bytes) {
  services_.statistics.clock().Leave(OverlapClock::kCommunicating);
  if (!services_.timeline.is_active()) return;
  std::string name(Name(bucket_.kind));
  for (char& c : name) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  Trace(name, begin_ns, NowNs(),
        "\"algorithm\":\"" + std::string(route.algorithm) + "\",\"row\":\"" +
            std::string(route.row) + "\",\"bytes\":" + std::to_string(wire_bytes) +
            ",\"lane\":" + std::to_string(bucket_.lane));
}

void BucketRun::Enter() {
  const uint64_t hash = MixHash(MixHash(job_.hash, executor().name()), route_.algorithm);
  lane_.tag = MakeTag(bucket_.lane, CheckedSequence(bucket_.id, hash));
  services_.running.Enter(bucket_.lane,
                          {ScheduleDigest::BucketsOf(bucket_.lane_class), bucket_.id, hash, {}},
                          [this] { return Describe(); });
}

std::string BucketRun::Describe() const {
  std::string text(Name(bucket_.kind));
  if (!job_.items.empty()) text += " '" + job_.items.front().tensor->ready->name + "'";
  if (job_.items.size() > 1) text += " and " + std::to_string(job_.items.size() - 1) + " more";
  return text + " (" + std::to_string(job_.load.bytes) + " bytes of " +
         std::string(Name(bucket_.dtype)) + " by " + std::string(route_.algorithm) + ", " +
         std::string(executor().name()) + ", lane " + std::to_string(bucket_.lane) + ")";
}

Result<Route> BucketRun::RouteOf(const Work& work, Load load) const {
  // What is on a device stays with its backend, whatever rules say of parts.
  if (&work == &bucket_ && (load == job_.load || is_on_device_)) return route_;
  RABIT_ASSIGN_OR_RETURN(const Route route, services_.router.Of(work, load, group_));
  // And what is staged stays on the host.
  return services_.backends[static_cast<size_t>(route.executor)]->works_on_devices() ? route_
                                                                                     : route;
}

Backend& BucketRun::executor() const {
  return *services_.backends[static_cast<size_t>(route_.executor)];
}

ReduceOp BucketRun::wire_op() const { return is_on_device_ ? bucket_.op : WireOp(bucket_.op); }

SegmentLimits BucketRun::segment_limits() const {
  // By what is agreed: a rank that has joined has no tensor on a device, and stages nothing.
  if (bucket_.device_kind != DeviceKind::kCpu || job_.items.size() == 1) return {};
  return {kAloneBytesMin, services_.router.JoinedBytesMax(route_, group_)};
}

Epilogue BucketRun::epilogue() const {
  if (is_on_device_) return {};
  return EpilogueOf(bucket_.op, bucket_.dtype, group_.size(), bucket_.postscale);
}

Status BucketRun::RunReduction() {
  if (!bucket_.codec.empty()) return RunCodec();
  is_in_place_ = true;
  const auto element_bytes = static_cast<int64_t>(SizeOf(bucket_.dtype));
  for (const Segment& segment : SegmentsOf(job_.items, element_bytes, segment_limits())) {
    RABIT_RETURN_IF_ERROR(RunSegment(segment));
  }
  return Status();
}

Status BucketRun::RunSegment(const Segment& segment) {
  RABIT_RETURN_IF_ERROR(Settle());  // segments share the buffer
  const bool has_result = bucket_.kind == Kind::kAllreduce || bucket_.root == services_.rank;
  const BucketItem& first = segment.items.front();
  const bool is_one = has_result && segment.is_contiguous && first.request() != nullptr;
  if (is_one && CanReachOutput(first)) return RunInPlace(segment);
  is_in_place_ = false;
  return RunFused(segment);
}

const std::byte* BucketRun::InputOf(const BucketItem& item) const {
  if (is_staged_) return staged_.InputOf(item, job_);
  return static_cast<const std::byte*>(item.request()->request.input.data) +
         static_cast<size_t>(item.partition.offset) * SizeOf(bucket_.dtype);
}

Result<std::byte*> BucketRun::OutputOf(const BucketItem& item) const {
  RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(item.tensor->ready->signature.shape));
  if (is_staged_ && item.request()->output().view.device.kind != DeviceKind::kCpu) {
    return staged_.OutputOf(item, job_);
  }
  return static_cast<std::byte*>(item.request()->output().view.data) +
         static_cast<size_t>(item.partition.offset) * SizeOf(bucket_.dtype);
}

// The output is the buffer: no copy but the one from input to output, and none if they are one.
Status BucketRun::RunInPlace(const Segment& segment) {
  const BucketItem& item = segment.items.front();
  const int64_t count = segment.count;
  RABIT_ASSIGN_OR_RETURN(std::byte* const output, OutputOf(item));
  RABIT_RETURN_IF_ERROR(Bring(item, InputOf(item), output, count));
  Epilogue left = epilogue();
  RABIT_RETURN_IF_ERROR(ExchangeReduction(TensorView{output, count, bucket_.dtype, {}}, left));
  return Then([this, output, count, left] {
    ApplyEpilogue(left, bucket_.dtype, output, count);
    return Status();
  });
}

Status BucketRun::RunFused(const Segment& segment) {
  const size_t bytes = static_cast<size_t>(segment.count) * SizeOf(bucket_.dtype);
  RABIT_ASSIGN_OR_RETURN(Bytes buffer, Packed(bytes));

  const int64_t pack_ns = NowNs();
  RABIT_RETURN_IF_ERROR(Pack(segment.items, buffer));
  Trace("MEMCPY_IN_FUSION_BUFFER", pack_ns, NowNs());

  Epilogue left = epilogue();
  RABIT_RETURN_IF_ERROR(
      ExchangeReduction(TensorView{buffer.data(), segment.count, bucket_.dtype, {}}, left));
  if (bucket_.kind == Kind::kReduce && bucket_.root != services_.rank) return Status();
  return Then([this, segment, buffer, left] {
    const int64_t unpack_ns = NowNs();
    ApplyEpilogue(left, bucket_.dtype, buffer.data(), segment.count);
    RABIT_RETURN_IF_ERROR(Unpack(segment.items, buffer));
    Trace("MEMCPY_OUT_FUSION_BUFFER", unpack_ns, NowNs());
    return Status();
  });
}

Status BucketRun::ExchangeReduction(const TensorView& buffer, Epilogue& left) {
  if (buffer.count == 0) return Status();  // on every rank alike
  const auto bytes = static_cast<int64_t>(buffer.bytes());
  Work converted;
  const Work* work = &bucket_;
  if (buffer.dtype != bucket_.dtype) {  // by a codec
    converted = bucket_;
    converted.dtype = buffer.dtype;
    work = &converted;
  }
  return Communicate(*work, {bytes}, bytes, [&](Backend& backend) {
    const LaneContext lane = Finishing(backend, lane_, left);
    if (bucket_.kind == Kind::kReduce) {
      return backend.Reduce(lane, buffer, wire_op(), group_.IndexOf(bucket_.root));
    }
    return backend.Allreduce(lane, buffer, wire_op());
  });
}

Status BucketRun::Pack(std::span<const BucketItem> items, Bytes buffer) {
  std::byte* to = buffer.data();
  for (const BucketItem& item : items) {
    const int64_t count = item.partition.count;
    const std::byte* const from = item.request() == nullptr ? nullptr : InputOf(item);
    RABIT_RETURN_IF_ERROR(Bring(item, from, to, count));
    to += static_cast<size_t>(count) * SizeOf(bucket_.dtype);
  }
  return Status();
}

Status BucketRun::Unpack(std::span<const BucketItem> items, ConstBytes buffer) {
  const std::byte* from = buffer.data();
  for (const BucketItem& item : items) {
    const int64_t count = item.partition.count;
    if (item.request() != nullptr) {
      RABIT_ASSIGN_OR_RETURN(std::byte* const output, OutputOf(item));
      const size_t bytes = static_cast<size_t>(count) * SizeOf(bucket_.dtype);
      RABIT_RETURN_IF_ERROR(HandOver(item, output, from, bytes));
    }
    from += static_cast<size_t>(count) * SizeOf(bucket_.dtype);
  }
  return Status();
}

void BucketRun::Trace(std::string_view name, int64_t begin_ns, int64_t end_ns,
                      const std::string& arguments) const {
  if (!services_.timeline.is_active()) return;
  for (const BucketItem& item : job_.items) {
    services_.timeline.Span(TimelineRow(bucket_.kind, item.tensor->ready->name), name, begin_ns,
                            end_ns, arguments);
  }
}

void BucketRun::Record() const {
  Statistics::BucketRecord record;
  record.kind = bucket_.kind;
  record.partitions = static_cast<int64_t>(job_.items.size());
  for (const BucketItem& item : job_.items) record.tensors += item.partition.is_last ? 1 : 0;
  record.bytes = job_.load.bytes;
  record.wire_bytes = wire_bytes_;
  record.busy_ns = NowNs() - started_ns_;
  record.is_in_place = is_in_place_;
  record.backend = services_.router.NameOf(route_.backend);
  if (record.backend.empty()) {
    record.backend = services_.backends[static_cast<size_t>(route_.backend)]->name();
  }
  record.algorithm = bucket_.kind == Kind::kAllreduce ? route_.algorithm : Name(bucket_.kind);
  record.codec = bucket_.codec.empty() ? "identity" : std::string_view(bucket_.codec);
  services_.statistics.AddBucket(record);
}

}  // namespace rabit
