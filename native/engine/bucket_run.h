// BucketRun: one bucket from the tensors of this rank to their results, in plain code, which blocks
// but for the last exchange.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "codec/codec.h"
#include "engine/bucket_job.h"
#include "engine/device_bucket.h"
#include "engine/engine.h"
#include "engine/failure_board.h"
#include "engine/fusion_buffer.h"
#include "engine/record.h"
#include "engine/running_work.h"
#include "engine/segments.h"
#include "engine/staged_bucket.h"
#include "engine/statistics.h"
#include "engine/timeline.h"
#include "route/router.h"

namespace rabit {

// What every lane uses; all of it is thread-safe and outlives the lanes.
struct LaneServices {
  int rank = 0;
  EngineOptions options;
  CodecSet& codecs;
  const Router& router;
  std::span<const std::unique_ptr<Backend>> backends;  // by Route::executor
  Statistics& statistics;
  Timeline& timeline;
  rabit::Record& record;
  RunningWork& running;
  Devices& devices;
  FailureBoard& failure;

  FailureScope ScopeOf(int32_t executor) const {
    const bool is_apart = backends[static_cast<size_t>(executor)]->fails_apart();
    return is_apart ? router.OwnerOf(executor) : kWholeEngine;
  }
};

// What a bucket works in; kept from one to the next.
struct BucketMemory {
  FusionBuffer& buffer;
  StagedBucket& staged;     // if its tensors are on a device
  DeviceBucket& on_device;  // the same, with a backend that works there
};

// Runs once.  The lane's thread, or whoever has claimed the lane.
class BucketRun {
 public:
  BucketRun(const LaneServices& services, const BucketJob& job, const BucketMemory& memory,
            Waiter waiter);

  // Has a device begin to copy what the bucket reads, before the buckets before this one are done.
  Status Prepare();
  bool is_staged() const { return is_staged_; }
  // Blocks until the collective is done and the outputs of all requests are written, or until its
  // last exchange is in the hands of a backend that does not block: then it is pending, and Finish
  // blocks for the rest.  An error is not yet wrapped with the tensor's name.
  Status Begin();
  bool is_pending() const { return pending_.has_value() || is_copying_ || is_on_stream_; }
  // What is left to do is on the stream of a device.
  bool is_on_stream() const { return is_on_stream_; }
  // While it is pending: stands for the result of an item with a request; null: Finish does.
  const DeviceEvent* ResultOf(const BucketItem& item) const;
  // Whether Finish has nothing to wait for; waits for that until `until`.
  bool WaitOver(Deadline until);
  Status Finish();
  // What it ends if it has failed.
  FailureScope failure_scope() const;

 private:
  // bucket_run.cc: kinds that reduce or copy whole tensors and can be cut and fused.
  Status RunReduction();
  Status RunSegment(const Segment& segment);
  Status RunInPlace(const Segment& segment);
  Status RunFused(const Segment& segment);
  // `left`: what is to be done to the result; afterwards, what still is (Finishing).
  Status ExchangeReduction(const TensorView& buffer, Epilogue& left);
  Status Pack(std::span<const BucketItem> items, Bytes buffer);
  Status Unpack(std::span<const BucketItem> items, ConstBytes buffer);

  // bucket_memory.cc: the same in the memory of the host and in that of a device, where it is put
  // on the stream, and scales are the backend's business.
  Result<Bytes> Packed(size_t bytes);
  Status Bring(const BucketItem& item, const std::byte* from, std::byte* to, int64_t count);
  Status Carry(std::byte* to, const std::byte* from, size_t bytes);
  // To the output of an item, at `to`.
  Status HandOver(const BucketItem& item, std::byte* to, const std::byte* from, size_t bytes);
  // Whether exchanges may write to the item's output; or where they write instead.
  bool CanReachOutput(const BucketItem& item) const;
  Result<Bytes> ResultBytes(const BucketItem& item);
  // The whole output is in `from`, which may be it.
  Status Deliver(const BucketItem& item, ConstBytes from);

  // Where this rank's part of a partition lies, or its image if it is on a device; of items with a
  // request.
  const std::byte* InputOf(const BucketItem& item) const;
  Result<std::byte*> OutputOf(const BucketItem& item) const;

  // codec_run.cc: reductions that travel compressed.
  class Wire;
  Status RunCodec();
  Result<CodecPart> CodecPartOf(const BucketItem& item, const Codec& codec,
                                std::byte* scaled) const;

  // parts_run.cc: kinds whose ranks hold even parts, which can be cut and fused as well.
  Status RunParts();
  Status GatherParts(const Segment& segment, std::span<const int64_t> counts);
  Status ExchangeGather(ConstBytes mine, Bytes all, std::span<const int64_t> counts);
  Status ScatterParts(const Segment& segment, std::span<const int64_t> counts);
  Status PrepareScatter(const BucketItem& item);
  Status PackParts(const Segment& segment, Bytes buffer);
  bool IsDirect(const Segment& segment) const;  // its memory is as the exchange wants it
  bool WritesToInput(const BucketItem& item) const;
  // Where a slice of an even part lies, or its image; of items with a request.
  size_t SliceOffset(const BucketItem& item, int64_t part, bool is_image) const;
  const std::byte* InputSlice(const BucketItem& item, int64_t part) const;
  std::byte* OutputSlice(const BucketItem& item, int64_t part) const;
  std::byte* OwnSlice(const BucketItem& item) const;  // of a reduce-scatter's output
  Status UnpackGathered(const Segment& segment, ConstBytes all);
  Status UnpackScattered(const Segment& segment, const std::byte* from);

  // vector_run.cc: kinds whose ranks hold different parts; one tensor at a time.
  Status RunEach();
  ConstBytes InputBytes(const BucketItem& item) const;  // of the whole tensor
  Bytes OutputBytes(const BucketItem& item) const;
  Status RunBroadcast(const BucketItem& item);
  Status RunAllgather(const BucketItem& item);
  Status RunGather(const BucketItem& item);
  Status RunScatter(const BucketItem& item);
  Status RunAlltoall(const BucketItem& item);
  Result<std::vector<int64_t>> ExchangeRows(const BucketItem& item,
                                            const std::vector<int64_t>& sent);
  Status RunSendOrRecv(const BucketItem& item);

  // Calls `exchange(backend)` on the route of this work and load; times it as communication and as
  // an event of every tensor.  It may be pending afterwards.
  template <class Exchange>
  Status Communicate(const Work& work, Load load, int64_t wire_bytes, Exchange exchange);
  // The same on a route that is known.  `load_bytes`: as statistics count them.
  template <class Exchange>
  Status CommunicateBy(const Route& route, Kind kind, int64_t load_bytes, int64_t wire_bytes,
                       Exchange exchange);
  // The next exchange is of this executor.
  Status GoTo(int32_t executor);
  // What follows upon the exchange; now if it is over, else in Settle.
  template <class Rest>
  Status Then(Rest rest);
  // Waits for the exchange that is pending, if one is.
  Status Settle();
  Status RunAll();
  Status RunOnDevice();
  Status FinishOnDevice();
  void Leave(const Route& route, int64_t begin_ns, int64_t wire_bytes);  // an exchange is over
  void End();                                                            // all of them are
  // That of the bucket, unless it is other work or another load: tensors that run one by one,
  // segments, and the rounds of a codec, whose sizes are known no earlier.
  Result<Route> RouteOf(const Work& work, Load load) const;
  void Trace(std::string_view name, int64_t begin_ns, int64_t end_ns,
             const std::string& arguments = {}) const;
  void Record() const;
  // Claims the tags of this content, and shows what runs as long as it does.
  void Enter();
  std::string Describe() const;

  Backend& executor() const;  // of the bucket as a whole
  ReduceOp wire_op() const;   // what the backend is asked for
  SegmentLimits segment_limits() const;
  Epilogue epilogue() const;  // what remains to be done after the reduction

  struct Pending {
    Operation operation;
    Route route;
    int64_t begin_ns;
    int64_t wire_bytes;
    std::function<Status()> rest;  // may be empty
  };

  const LaneServices& services_;
  const BucketJob& job_;
  const Bucket& bucket_;
  const Group& group_;
  FusionBuffer& buffer_;
  StagedBucket& staged_;
  DeviceBucket& on_device_;
  const bool is_on_device_;
  const bool is_staged_;
  bool is_copying_ = false;    // results to a device
  bool is_on_stream_ = false;  // all of it
  LaneContext lane_;
  int64_t started_ns_ = 0;
  int64_t count_ = 0;       // elements of all partitions
  int64_t wire_bytes_ = 0;  // that the exchange carries
  bool is_in_place_ = false;
  Route route_;  // of the bucket as a whole
  std::optional<Pending> pending_;
  int32_t executor_ = -1;                // of the last exchange
  std::vector<FailureScope> gone_from_;  // see FailureBoard::GoOnAfter
  bool is_torn_ = false;                 // where it went on from has failed
};

// "allreduce 'a' and 3 more on rank 1"
std::string DescribeBucket(const BucketJob& job, int rank);

template <class Exchange>
Status BucketRun::Communicate(const Work& work, Load load, int64_t wire_bytes, Exchange exchange) {
  RABIT_ASSIGN_OR_RETURN(const Route route, RouteOf(work, load));
  return CommunicateBy(route, work.kind, load.bytes, wire_bytes, std::move(exchange));
}

template <class Exchange>
Status BucketRun::CommunicateBy(const Route& route, Kind kind, int64_t load_bytes,
                                int64_t wire_bytes, Exchange exchange) {
  RABIT_RETURN_IF_ERROR(GoTo(route.executor));
  Backend& backend = *services_.backends[static_cast<size_t>(route.executor)];
  lane_.algorithm = route.algorithm;
  services_.statistics.AddExchange(kind, route, backend.name(), load_bytes);
  wire_bytes_ += wire_bytes;
  if (is_on_device_ && backend.works_on_devices()) return exchange(backend).Wait(lane_.deadline);
  const int64_t begin_ns = NowNs();
  services_.statistics.clock().Enter(OverlapClock::kCommunicating);
  Operation operation = exchange(backend);
  if (!operation.is_finished()) {
    pending_.emplace(Pending{std::move(operation), route, begin_ns, wire_bytes, nullptr});
    return Status();
  }
  Leave(route, begin_ns, wire_bytes);
  return operation.Wait(lane_.deadline);
}

template <class Rest>
Status BucketRun::Then(Rest rest) {
  if (!pending_) return rest();
  pending_->rest = std::move(rest);
  return Status();
}

}  // namespace rabit
