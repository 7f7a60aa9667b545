#include "engine/scheduled_from.h"

namespace rabit {

int64_t AgreedCount(const ReadyTensor& ready) {
  const std::vector<int64_t>& shape = ready.signature.shape;
  const Kind kind = ready.signature.kind;
  const bool has_extents = kind == Kind::kAllgather || kind == Kind::kGather ||
                           kind == Kind::kAlltoall || kind == Kind::kScatter;
  if (!has_extents || ready.extents.empty() || shape.empty()) return ready.signature.count();
  int64_t count = 0;
  for (int64_t extent : ready.extents) count += extent;
  for (size_t i = 1; i < shape.size(); ++i) count *= shape[i];
  return count;
}

ScheduledTensor ScheduledFrom(const ReadyTensor& ready, int32_t slot, int64_t count) {
  const Signature& agreed = ready.signature;
  ScheduledTensor scheduled;
  scheduled.id = slot;
  scheduled.kind = agreed.kind;
  scheduled.count = count;
  scheduled.dtype = agreed.dtype;
  scheduled.device = agreed.device;
  scheduled.op = agreed.op;
  scheduled.prescale = agreed.prescale;
  scheduled.postscale = agreed.postscale;
  scheduled.root = agreed.root;
  scheduled.priority = agreed.priority;
  scheduled.group = agreed.group;
  scheduled.codec = agreed.codec;
  scheduled.backend = agreed.backend;
  scheduled.joined = ready.joined;
  return scheduled;
}

}  // namespace rabit
