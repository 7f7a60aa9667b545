// BucketExchange: the exchanges of one bucket: who makes each, under which tag, and which one is
// still under way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "engine/bucket_job.h"
#include "engine/lane_services.h"
#include "engine/segments.h"

namespace rabit {

// What it asks of a backend follows from what is agreed, and from whether the backend works on a
// device, which the route says.  The lane's thread, or whoever has claimed the lane.
class BucketExchange {
 public:
  BucketExchange(const LaneServices& services, const BucketJob& job, Waiter waiter);

  // Claims the tags of the bucket's content, and shows what runs until Close.  Its route is known.
  void Open();
  // From here on exchanges are put on the stream of `place`, which may be null, until LeaveStream.
  void EnterStream(const DevicePlace* place);
  void LeaveStream();
  // After an error: what is under way ends here.
  void Drop();
  void Close();  // nothing is under way

  // Calls `exchange(backend)` on the route of this work and load; counts it as communication
  // and as an event of every tensor.  It may be pending afterwards.
  template <class Call>
  Status Communicate(const Work& work, Load load, int64_t wire_bytes, Call exchange);
  // The same on a route that is known.  `load_bytes`: as statistics count them.
  template <class Call>
  Status CommunicateBy(const Route& route, Kind kind, int64_t load_bytes, int64_t wire_bytes,
                       Call exchange);
  // Bytes for each member of the group, and from each; what stays on this rank is on no wire.
  Status Alltoall(const Work& work, Load load, ConstBytes in, std::span<const int64_t> send_bytes,
                  Bytes out, std::span<const int64_t> receive_bytes);
  // What follows upon the exchange; now if it is over, else in Settle.
  template <class Rest>
  Status Then(Rest rest);
  // Waits for the exchange that is pending, if one is.
  Status Settle();
  bool is_pending() const { return pending_.has_value(); }
  // Whether the pending one is over; waits for that until `until`.
  bool WaitOver(Deadline until);

  ReduceOp wire_op() const;      // what the backend is asked for
  double input_scale() const;    // by which inputs are multiplied before the exchange
  Epilogue epilogue() const;     // what remains to be done after the reduction
  SegmentLimits limits() const;  // of what is exchanged together

  const LaneContext& lane() const { return lane_; }
  Backend& executor() const { return services_.BackendOf(route_.executor); }
  const Route& route() const { return route_; }
  int64_t wire_bytes() const { return wire_bytes_; }  // that exchanges have carried
  FailureScope failure_scope() const;                 // what the bucket ends if it has failed
  void Trace(std::string_view stage, int64_t begin_ns) const;  // which is over now

 private:
  struct Pending {
    Operation operation;
    Route route;
    int64_t begin_ns;
    int64_t wire_bytes;
    std::function<Status()> rest;  // may be empty
  };

  // The next exchange is of this executor.
  Status GoTo(int32_t executor);
  // That of the bucket, unless it is other work or another load: tensors that run one by one,
  // segments, and the rounds of a codec, whose sizes are known no earlier.
  Result<Route> RouteOf(const Work& work, Load load) const;
  void Leave(const Route& route, int64_t begin_ns, int64_t wire_bytes);
  std::string Describe() const;

  const LaneServices& services_;
  const BucketJob& job_;
  LaneContext lane_;
  Route route_;  // of the bucket as a whole
  int64_t entered_ns_ = 0;
  int64_t wire_bytes_ = 0;
  std::optional<Pending> pending_;
  int32_t executor_ = -1;                // of the last exchange
  std::vector<FailureScope> gone_from_;  // see FailureBoard::GoOnAfter
  bool is_torn_ = false;                 // where it went on from has failed
};

// "allreduce 'a' and 3 more"
std::string DescribeTensors(const BucketJob& job);

template <class Call>
Status BucketExchange::Communicate(const Work& work, Load load, int64_t wire_bytes, Call exchange) {
  RABIT_ASSIGN_OR_RETURN(const Route route, RouteOf(work, load));
  return CommunicateBy(route, work.kind, load.bytes, wire_bytes, std::move(exchange));
}

template <class Call>
Status BucketExchange::CommunicateBy(const Route& route, Kind kind, int64_t load_bytes,
                                     int64_t wire_bytes, Call exchange) {
  RABIT_RETURN_IF_ERROR(GoTo(route.executor));
  Backend& backend = services_.BackendOf(route.executor);
  lane_.algorithm = route.algorithm;
  services_.statistics.AddExchange(kind, route, backend.name(), load_bytes);
  wire_bytes_ += wire_bytes;
  // What is on a stream is over for the lane; EnterStream has begun to count its time.
  if (lane_.place != nullptr && backend.works_on_devices()) {
    return exchange(backend).Wait(lane_.deadline);
  }
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
Status BucketExchange::Then(Rest rest) {
  if (!pending_) return rest();
  pending_->rest = std::move(rest);
  return Status();
}

}  // namespace rabit
