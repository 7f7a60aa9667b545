#include "engine/bucket_run.h"

#include <algorithm>
#include <chrono>

#include "engine/handle_table.h"

namespace rabit {

std::string DescribeBucket(const BucketJob& job, int rank) {
  return DescribeTensors(job) + " on rank " + std::to_string(rank);
}

BucketRun::BucketRun(const LaneServices& services, const BucketJob& job, BucketMemory& memory,
                     Waiter waiter)
    : services_(services),
      job_(job),
      memory_(memory),
      exchange_(services, job, waiter),
      work_{job, services.rank, memory, exchange_} {}

Status BucketRun::Prepare() { return memory_.Prepare(services_, job_, exchange_.lane().deadline); }

Status BucketRun::Begin() {
  started_ns_ = NowNs();
  if (!job_.route.ok()) return job_.route.status();
  exchange_.Open();
  services_.record.Started(job_, exchange_.executor().name(), exchange_.route().algorithm,
                           started_ns_);
  Status status = memory_.Begin();
  if (status.ok()) status = Exchange();
  // A failed bucket is over here: the lane concludes it and never calls Finish.
  if (!status.ok()) exchange_.Drop();
  if (!is_pending()) End();
  return status;
}

Status BucketRun::Exchange() {
  exchange_.EnterStream(memory_.place());
  Status exchanged = RunKind();
  // The device reads the images behind the host's back, so no exchange may still write to them.
  if (exchanged.ok() && memory_.has_images()) exchanged = exchange_.Settle();
  // Also after an error: what is on a stream already uses memory, and has to be ended.
  RABIT_RETURN_IF_ERROR(memory_.Launch(exchanged));
  is_launched_ = memory_.has_images() || memory_.place() != nullptr;
  return Status();
}

Status BucketRun::RunKind() {
  const Bucket& bucket = job_.bucket;
  if (bucket.kind == Kind::kAllreduce || bucket.kind == Kind::kReduce) {
    return bucket.codec.empty() ? RunReduction(work_) : RunCodec(work_, services_.codecs);
  }
  return bucket.even_parts > 0 ? RunParts(work_) : RunEach(work_);
}

const DeviceEvent* BucketRun::ResultOf(const BucketItem& item) const {
  return is_launched_ ? memory_.ResultOf(item) : nullptr;
}

bool BucketRun::WaitOver(Deadline until) {
  const Deadline last = exchange_.lane().deadline;
  const bool is_over = is_launched_ ? memory_.Wait(std::min(until, last)).code() != Code::kTimedOut
                                    : exchange_.WaitOver(until);
  // Past its deadline Finish does not wait, and says what is wrong.
  return is_over || std::chrono::steady_clock::now() >= last;
}

Status BucketRun::Finish() {
  Status status = is_launched_ ? memory_.Wait(exchange_.lane().deadline) : exchange_.Settle();
  if (is_launched_ && status.code() == Code::kTimedOut) memory_.GiveUp(status);
  exchange_.LeaveStream();
  End();
  return status;
}

// The place in RunningWork goes first: its description reads the job, which the lane lets go of
// next.
void BucketRun::End() {
  exchange_.Close();
  Record();
}

void BucketRun::Record() const {
  const Route& route = exchange_.route();
  Statistics::BucketRecord record;
  record.kind = job_.bucket.kind;
  record.partitions = static_cast<int64_t>(job_.items.size());
  for (const BucketItem& item : job_.items) record.tensors += item.partition.is_last ? 1 : 0;
  record.bytes = job_.load.bytes;
  record.wire_bytes = exchange_.wire_bytes();
  record.busy_ns = NowNs() - started_ns_;
  record.is_in_place = work_.is_in_place;
  record.backend = services_.router.NameOf(route.backend);
  if (record.backend.empty()) record.backend = services_.BackendOf(route.backend).name();
  record.algorithm = record.kind == Kind::kAllreduce ? route.algorithm : Name(record.kind);
  record.codec = job_.bucket.codec.empty() ? "identity" : std::string_view(job_.bucket.codec);
  services_.statistics.AddBucket(record);
}

}  // namespace rabit
