// BucketJob: a bucket together with the tensors of this rank; what the engine thread hands a lane.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/group.h"
#include "base/result.h"
#include "control/agreement.h"
#include "engine/pending_request.h"
#include "route/route.h"
#include "schedule/scheduler.h"

namespace rabit {

// A tensor that was agreed, on its way through the scheduler.
struct AgreedTensor {
  const ReadyTensor* ready = nullptr;
  std::shared_ptr<PendingRequest> request;  // null: this rank has joined, or is not in the group
  int64_t agreed_ns = 0;
};

// The tensors of one agreement; one allocation, which lives until the last of them is finished.
struct AgreedTensors {
  ReadyTensors ready;
  std::vector<AgreedTensor> tensors;
};

struct BucketItem {
  Partition partition;
  std::shared_ptr<const AgreedTensor> tensor;

  PendingRequest* request() const { return tensor->request.get(); }  // may be null
};

struct BucketJob {
  Bucket bucket;
  std::shared_ptr<const Group> group;  // this rank is a member
  std::vector<BucketItem> items;       // one per partition
  uint64_t hash = 0;                   // ContentHash of all above
  Load load;                           // of the whole bucket
  Result<Route> route = Route();       // of that load; the status of one that nobody can run
};

}  // namespace rabit
