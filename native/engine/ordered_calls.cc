#include "engine/ordered_calls.h"

#include <algorithm>
#include <vector>

#include "arithmetic/reduce.h"
#include "base/clock.h"
#include "base/kind.h"
#include "engine/averaging.h"
#include "engine/content_hash.h"
#include "engine/overlap.h"
#include "engine/patience.h"

namespace rabit {
namespace {

// Equal on all ranks exactly if they make the same call.
uint64_t ContentHash(const OrderedCall& call, uint64_t number) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](auto value) { hash = MixHash(hash, static_cast<uint64_t>(value)); };
  const TensorView& view = call.payload();
  add(number);
  add(call.kind);
  add(call.op);
  add(view.dtype);
  add(view.count);
  add(call.root);
  add(call.group);
  return hash;
}

Signature SignatureOf(const OrderedCall& call) {
  Signature signature;
  signature.kind = call.kind;
  signature.dtype = call.output.dtype;
  signature.group = call.group;
  signature.root = call.root;
  return signature;
}

Work WorkOf(const OrderedCall& call) {
  const TensorView& view = call.payload();
  Work work;
  work.kind = call.kind;
  work.dtype = view.dtype;
  work.op = call.op;
  work.postscale = call.postscale;
  work.device_kind = view.device.kind;
  work.root = call.root;
  work.group = call.group;
  work.backend = call.backend;
  return work;
}

Load LoadOf(const OrderedCall& call, const Group& group) {
  const auto bytes = static_cast<int64_t>(call.payload().bytes());
  if (call.kind == Kind::kAllgather) return {bytes * group.size(), bytes == 0};
  return {bytes};
}

ConstBytes InputBytes(const OrderedCall& call) {
  return {static_cast<const std::byte*>(call.input.data), call.input.bytes()};
}
Bytes OutputBytes(const OrderedCall& call) {
  return {static_cast<std::byte*>(call.output.data), call.output.bytes()};
}

}  // namespace

OrderedCalls::OrderedCalls(EngineState& state)
    : state_(state), lane_(state.parts.all_lanes()), routes_(*state.parts.router) {}

Status OrderedCalls::Run(const OrderedCall& call, Deadline deadline) {
  // The engine thread may have ended; then nobody else would tell this thread why.
  if (state_.failure.has_verdict()) return state_.failure.verdict();
  RABIT_ASSIGN_OR_RETURN(const std::shared_ptr<const Group> group, state_.groups.Find(call.group));
  RABIT_RETURN_IF_ERROR(Check(call, *group));
  // One ordered call at a time for each engine: they share one stream, on which only their order
  // tells calls apart.
  MutexLock lock(mutex_);
  const uint64_t number = ++calls_made_[call.group];
  // The hash is a part of the tag: ranks that make different calls find no partner, and the
  // comparison of running work names the difference.
  const uint64_t hash = ContentHash(call, number);
  const LaneContext lane{lane_, MakeTag(lane_, CheckedSequence(number, hash)), deadline, *group,
                         Waiter::kCaller};
  state_.running.Enter(lane_, {call.group, number, hash, {}}, [&] { return Values(call); });
  // The engine thread watches ordered calls only once there has been one.
  if (!state_.has_ordered.exchange(true)) state_.Wake();
  const bool is_noted = state_.record.is_active();
  const int64_t begin_ns = is_noted ? NowNs() : 0;
  const Handle handle = state_.handles.NewHandle();
  if (is_noted)
    state_.record.Ordered(handle.value, SignatureOf(call), call.payload().count, begin_ns);
  const Result<Route> route = routes_.Of(WorkOf(call), LoadOf(call, *group), *group);
  if (is_noted && route.ok()) {
    const Backend& backend = *state_.parts.backends[static_cast<size_t>(route->executor)];
    state_.record.Started(handle.value, backend.name(), route->algorithm, lane_, begin_ns);
  }
  const FailureScope scope = route.ok() ? state_.ScopeOf(route->executor) : kWholeEngine;
  Status status = route.ok() ? state_.failure.verdict_on(scope) : route.status();
  if (status.ok()) status = Execute(call, *group, *route, lane);
  if (is_noted) {
    const auto bytes = static_cast<int64_t>(std::max(call.input.bytes(), call.output.bytes()));
    state_.record.Finished(handle.value, {"(ordered)", call.kind, call.output.dtype, call.group,
                                          bytes, begin_ns, NowNs(), status.ok()});
  }
  // Before the call can return: what the comparison of ranks describes refers to `call`, on this
  // stack.
  state_.running.Leave(lane_, number);
  if (status.ok() || status.code() == Code::kUnsupported) return status;
  return state_.failure.Resolve(
      status.code() == Code::kMismatch ? kWholeEngine : scope,
      Status(status.code(), Describe(call) + " (not negotiated: every rank must make the same " +
                                "ordered calls in the same order): " + status.message())
          .WithCulprit(status.culprit()),
      After(kVerdictWithin));
}

Status OrderedCalls::Run(const std::string& what, const std::function<Status()>& exchange) {
  MutexLock lock(mutex_);
  if (state_.failure.has_verdict()) return state_.failure.verdict();
  const Status status = exchange();
  // Arguments are looked at before anything is sent, and alike on all ranks.
  if (status.ok() || status.code() == Code::kInvalidArgument) return status;
  return state_.failure.Resolve(
      kWholeEngine, status.Annotated(what + " on rank " + std::to_string(state_.parts.rank)),
      After(kVerdictWithin));
}

Status OrderedCalls::Execute(const OrderedCall& call, const Group& group, const Route& route,
                             LaneContext lane) {
  const auto size = static_cast<size_t>(group.size());
  const auto in_bytes = static_cast<int64_t>(call.input.bytes());
  const Load load = LoadOf(call, group);
  Backend* const backend = state_.parts.backends[static_cast<size_t>(route.executor)].get();
  lane.algorithm = route.algorithm;
  state_.statistics.AddExchange(call.kind, route, backend->name(), load.bytes);
  switch (call.kind) {
    case Kind::kAllreduce:
      return Allreduce(call, *backend, lane);
    case Kind::kReduceScatter:
      return ReduceScatter(call, *backend, lane);
    case Kind::kBroadcast:
      return backend->Broadcast(lane, OutputBytes(call), group.IndexOf(call.root))
          .Wait(lane.deadline);
    case Kind::kAllgather: {
      const std::vector<int64_t> parts(size, in_bytes);
      return backend->Allgather(lane, InputBytes(call), OutputBytes(call), parts)
          .Wait(lane.deadline);
    }
    case Kind::kAlltoall: {
      const std::vector<int64_t> parts(size, in_bytes / static_cast<int64_t>(size));
      return backend->Alltoall(lane, InputBytes(call), parts, OutputBytes(call), parts)
          .Wait(lane.deadline);
    }
    default:
      return backend->Barrier(lane).Wait(lane.deadline);
  }
}

Status OrderedCalls::Allreduce(const OrderedCall& call, Backend& backend, const LaneContext& lane) {
  const TensorView& out = call.output;
  if (out.count == 0) return Status();
  auto* const data = static_cast<std::byte*>(out.data);
  // The exchange works in the output; the input stays as it is.
  CopyScaled(out.dtype, static_cast<const std::byte*>(call.input.data), data, out.count,
             call.prescale);
  Epilogue left = EpilogueOf(call.op, out.dtype, lane.group.size(), call.postscale);
  const LaneContext finishing = Finishing(backend, lane, left);
  RABIT_RETURN_IF_ERROR(backend.Allreduce(finishing, out, WireOp(call.op)).Wait(lane.deadline));
  ApplyEpilogue(left, out.dtype, data, out.count);
  return Status();
}

Status OrderedCalls::ReduceScatter(const OrderedCall& call, Backend& backend,
                                   const LaneContext& lane) {
  const int size = lane.group.size();
  const TensorView& out = call.output;
  if (out.count == 0) return Status();
  TensorView in = call.input;
  // The backend reads other parts of the input while it writes the output, so memory in common must
  // be copied first.
  if (call.prescale != 1.0 || Overlap(InputBytes(call), OutputBytes(call))) {
    RABIT_ASSIGN_OR_RETURN(const Bytes scaled, buffer_.Get(FusionBuffer::kPacked, in.bytes()));
    CopyScaled(in.dtype, static_cast<const std::byte*>(in.data), scaled.data(), in.count,
               call.prescale);
    in.data = scaled.data();
  }
  const std::vector<int64_t> parts(static_cast<size_t>(size), out.count);
  Epilogue left = EpilogueOf(call.op, out.dtype, size, call.postscale);
  const LaneContext finishing = Finishing(backend, lane, left);
  RABIT_RETURN_IF_ERROR(
      backend.ReduceScatter(finishing, in, out, parts, WireOp(call.op)).Wait(lane.deadline));
  ApplyEpilogue(left, out.dtype, static_cast<std::byte*>(out.data), out.count);
  return Status();
}

Status OrderedCalls::Check(const OrderedCall& call, const Group& group) const {
  if (!group.is_member()) return Bad(call, "this rank is not in the group; call it on members");
  if (call.kind == Kind::kBarrier) return Status();
  const bool is_known = call.kind == Kind::kAllreduce || call.kind == Kind::kReduceScatter ||
                        call.kind == Kind::kBroadcast || call.kind == Kind::kAllgather ||
                        call.kind == Kind::kAlltoall;
  if (!is_known) {
    return Bad(call,
               "this kind needs the negotiation; ordered calls are allreduce, broadcast, "
               "allgather, reducescatter, alltoall and barrier");
  }
  if (call.kind == Kind::kBroadcast && group.IndexOf(call.root) < 0) {
    return Bad(call, "the root " + std::to_string(call.root) + " is not in the group; correct it");
  }
  const bool has_input = call.kind != Kind::kBroadcast;
  const TensorView& view = call.payload();
  if (view.device.kind != DeviceKind::kCpu || call.output.device.kind != DeviceKind::kCpu) {
    return Bad(call, "a tensor is not in the memory of the CPU; copy it there first");
  }
  if (has_input && call.input.dtype != call.output.dtype) {
    return Bad(call, "the input is " + std::string(Name(call.input.dtype)) + " and the output " +
                         std::string(Name(call.output.dtype)) + "; use one dtype");
  }
  if (TraitsOf(call.kind).reduces && !Supports(view.dtype, call.op)) {
    const Status bad =
        Bad(call, std::string(Name(call.op)) + " of " + std::string(Name(view.dtype)) +
                      " is not defined: " + std::string(LimitOf(view.dtype)) +
                      "; use another op or type");
    return Unsupported(bad.message());
  }
  return CheckCounts(call, group.size());
}

Status OrderedCalls::CheckCounts(const OrderedCall& call, int64_t size) const {
  const int64_t in = call.input.count;
  const int64_t out = call.output.count;
  const bool has_input = call.kind != Kind::kBroadcast;
  if (out < 0 || (has_input && in < 0) || (out > 0 && call.output.data == nullptr) ||
      (has_input && in > 0 && call.input.data == nullptr)) {
    return Bad(call, "a tensor has elements but no memory, or a negative count; pass its memory");
  }
  const bool fits = call.kind == Kind::kBroadcast       ? true
                    : call.kind == Kind::kAllgather     ? out == in * size
                    : call.kind == Kind::kReduceScatter ? in == out * size
                    : call.kind == Kind::kAlltoall      ? in == out && in % size == 0
                                                        : in == out;
  if (!fits) {
    return Bad(call, "the input has " + std::to_string(in) + " elements and the output " +
                         std::to_string(out) + ", which does not fit " + std::to_string(size) +
                         " ranks with equal parts; correct the sizes");
  }
  const bool may_alias = call.kind == Kind::kAllreduce || call.kind == Kind::kBroadcast;
  if (!may_alias && in > 0 && call.input.data == call.output.data) {
    return Bad(call, "the output is the input; pass other memory");
  }
  return Status();
}

std::string OrderedCalls::Values(const OrderedCall& call) {
  const std::string kind(Name(call.kind));
  if (call.kind == Kind::kBarrier) return kind;
  const TensorView& view = call.payload();
  const std::string elements =
      std::to_string(view.count) + " elements of " + std::string(Name(view.dtype));
  if (call.kind == Kind::kBroadcast) {
    return kind + " of " + elements + " from rank " + std::to_string(call.root);
  }
  return TraitsOf(call.kind).reduces ? kind + " (" + std::string(Name(call.op)) + ") of " + elements
                                     : kind + " of " + elements;
}

std::string OrderedCalls::Describe(const OrderedCall& call) const {
  return "ordered " + std::string(Name(call.kind)) + " on rank " +
         std::to_string(state_.parts.rank);
}

Status OrderedCalls::Bad(const OrderedCall& call, const std::string& why) const {
  return InvalidArgument(Describe(call) + ": " + why);
}

}  // namespace rabit
