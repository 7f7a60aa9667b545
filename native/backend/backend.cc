#include "backend/backend.h"

namespace rabit {
namespace {

Status Missing(const Backend& backend, std::string_view collective) {
  return Unsupported("backend '" + std::string(backend.name()) + "' has no " +
                     std::string(collective) + "; use another backend for it");
}

}  // namespace

// Backends that keep nothing of a group need no more.
Status Backend::AddGroup(const Group&) { return Status(); }
Operation Backend::Allreduce(const LaneContext&, const TensorView&, ReduceOp) {
  return Missing(*this, "allreduce");
}
Operation Backend::Reduce(const LaneContext&, const TensorView&, ReduceOp, int) {
  return Missing(*this, "reduce");
}
Operation Backend::Allgather(const LaneContext&, ConstBytes, Bytes, std::span<const int64_t>) {
  return Missing(*this, "allgather");
}
Operation Backend::ReduceScatter(const LaneContext&, const TensorView&, const TensorView&,
                                 std::span<const int64_t>, ReduceOp) {
  return Missing(*this, "reducescatter");
}
Operation Backend::Broadcast(const LaneContext&, Bytes, int) { return Missing(*this, "broadcast"); }
Operation Backend::Alltoall(const LaneContext&, ConstBytes, std::span<const int64_t>, Bytes,
                            std::span<const int64_t>) {
  return Missing(*this, "alltoall");
}
Operation Backend::Gather(const LaneContext&, ConstBytes, Bytes, std::span<const int64_t>, int) {
  return Missing(*this, "gather");
}
Operation Backend::Scatter(const LaneContext&, ConstBytes, std::span<const int64_t>, Bytes, int) {
  return Missing(*this, "scatter");
}
Operation Backend::Barrier(const LaneContext&) { return Missing(*this, "barrier"); }
Operation Backend::Send(const LaneContext&, ConstBytes, int) { return Missing(*this, "send"); }
Operation Backend::Recv(const LaneContext&, Bytes, int) { return Missing(*this, "recv"); }
std::vector<EncodedSlice> Backend::DivideEncoded(const LaneContext&, int64_t, int64_t) {
  return {};
}
Operation Backend::SumEncoded(const LaneContext&, Bytes, std::span<const EncodedSlice>) {
  return Missing(*this, "sum of encodings");
}

}  // namespace rabit
