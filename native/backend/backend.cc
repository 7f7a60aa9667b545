#include "backend/backend.h"

namespace rabit {
namespace {

Status Missing(const Backend& backend, std::string_view collective) {
  return Unsupported("backend '" + std::string(backend.name()) + "' has no " +
                     std::string(collective) + "; use another backend for it");
}

}  // namespace

Status Backend::AddGroup(const Group&) { return Status(); }
Status Backend::Allreduce(const LaneContext&, const TensorView&, ReduceOp) {
  return Missing(*this, "allreduce");
}
Status Backend::Reduce(const LaneContext&, const TensorView&, ReduceOp, int) {
  return Missing(*this, "reduce");
}
Status Backend::Allgather(const LaneContext&, ConstBytes, Bytes, std::span<const int64_t>) {
  return Missing(*this, "allgather");
}
Status Backend::ReduceScatter(const LaneContext&, const TensorView&, const TensorView&,
                              std::span<const int64_t>, ReduceOp) {
  return Missing(*this, "reducescatter");
}
Status Backend::Broadcast(const LaneContext&, Bytes, int) { return Missing(*this, "broadcast"); }
Status Backend::Alltoall(const LaneContext&, ConstBytes, std::span<const int64_t>, Bytes,
                         std::span<const int64_t>) {
  return Missing(*this, "alltoall");
}
Status Backend::Gather(const LaneContext&, ConstBytes, Bytes, std::span<const int64_t>, int) {
  return Missing(*this, "gather");
}
Status Backend::Scatter(const LaneContext&, ConstBytes, std::span<const int64_t>, Bytes, int) {
  return Missing(*this, "scatter");
}
Status Backend::Barrier(const LaneContext&) { return Missing(*this, "barrier"); }
Status Backend::Send(const LaneContext&, ConstBytes, int) { return Missing(*this, "send"); }
Status Backend::Recv(const LaneContext&, Bytes, int) { return Missing(*this, "recv"); }

}  // namespace rabit
