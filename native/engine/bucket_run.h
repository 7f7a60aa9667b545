// BucketRun: one bucket from the tensors of this rank to their results, in plain code, which blocks
// but for the last exchange.
#pragma once

#include <string>

#include "engine/bucket_exchange.h"
#include "engine/bucket_job.h"
#include "engine/bucket_memory.h"
#include "engine/bucket_work.h"
#include "engine/lane_services.h"

namespace rabit {

// Its stages: the memory brings the tensors where they can be exchanged, the work of its kind is
// done there, and the memory sends the results to the outputs.  Runs once.  The lane's thread, or
// whoever has claimed the lane.
class BucketRun {
 public:
  BucketRun(const LaneServices& services, const BucketJob& job, BucketMemory& memory,
            Waiter waiter);

  // Has a device begin to copy what the bucket reads, before the buckets before this one are done.
  Status Prepare();
  // Blocks until the collective is done and the outputs of all requests are written, or until its
  // last exchange is in the hands of a backend that does not block, or its results are on their
  // way: then it is pending, and Finish blocks for the rest.  An error is not yet wrapped with the
  // tensor's name.
  Status Begin();
  bool is_pending() const { return exchange_.is_pending() || is_launched_; }
  // Whether the next bucket may be prepared while this one is exchanged.
  bool has_images() const { return memory_.has_images(); }
  // What is left to do is on the stream of a device.
  bool is_on_stream() const { return is_launched_ && !memory_.has_images(); }
  // While it is pending: stands for the result of an item with a request; null: Finish does.
  const DeviceEvent* ResultOf(const BucketItem& item) const;
  // Whether Finish has nothing to wait for; waits for that until `until`.
  bool WaitOver(Deadline until);
  Status Finish();
  // What it ends if it has failed.
  FailureScope failure_scope() const { return exchange_.failure_scope(); }

 private:
  Status RunKind();
  Status Exchange();
  void End();
  void Record() const;

  const LaneServices& services_;
  const BucketJob& job_;
  BucketMemory& memory_;
  BucketExchange exchange_;
  BucketWork work_;
  int64_t started_ns_ = 0;
  bool is_launched_ = false;  // results are on their way to a device, or on its stream
};

// "allreduce 'a' and 3 more on rank 1"
std::string DescribeBucket(const BucketJob& job, int rank);

}  // namespace rabit
