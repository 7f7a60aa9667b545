// The C ABI: every function validates, calls, and turns a Status into a code.  Nothing is thrown
// through it.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "abi/connections.h"
#include "abi/guard.h"
#include "abi/ps_wiring.h"
#include "abi/wiring.h"
#include "include/rabit_abi.h"

struct rabit_engine {
  std::unique_ptr<rabit::WiredEngine> wired;
};

struct rabit_pool {
  std::shared_ptr<rabit::ConnectionPool> pool;
};

namespace rabit {
namespace {

constexpr int kDimensionsMax = 8;

Result<TensorView> ViewOf(const rabit_tensor& tensor) {
  const std::optional<DType> dtype = DTypeFrom(tensor.dtype);
  if (!dtype) {
    return InvalidArgument("dtype " + std::to_string(tensor.dtype) +
                           " is unknown: this library has 0 to " + std::to_string(kDTypeCount - 1) +
                           "; convert the tensor");
  }
  return TensorView{tensor.data, tensor.count, *dtype,
                    Device{static_cast<DeviceKind>(tensor.device_kind), tensor.device_index}};
}

Status CheckStructSize(const rabit_request& given) {
  if (given.struct_size >= sizeof(rabit_request)) return Status();
  return InvalidArgument("struct_size is " + std::to_string(given.struct_size) +
                         " but this library knows " + std::to_string(sizeof(rabit_request)) +
                         " bytes: the caller was built for another version; update it");
}

Result<Kind> KindOf(const rabit_request& given) {
  if (const std::optional<Kind> kind = KindFrom(given.kind)) return *kind;
  return InvalidArgument("kind " + std::to_string(given.kind) +
                         " is no collective of this library; see rabit_kind");
}

Result<ReduceOp> ReduceOpOf(const rabit_request& given) {
  if (const std::optional<ReduceOp> op = ReduceOpFrom(given.reduce_op)) return *op;
  return InvalidArgument("reduce_op " + std::to_string(given.reduce_op) +
                         " is no operation of this library; see rabit_reduce_op");
}

Status FillSignature(const rabit_request& given, const rabit_tensor& shaped, Signature& signature) {
  RABIT_ASSIGN_OR_RETURN(signature.kind, KindOf(given));
  RABIT_ASSIGN_OR_RETURN(signature.op, ReduceOpOf(given));
  if (shaped.ndim < 0 || shaped.ndim > kDimensionsMax ||
      (shaped.ndim > 0 && shaped.shape == nullptr)) {
    return InvalidArgument("a tensor has " + std::to_string(shaped.ndim) +
                           " dimensions: 0 to 8 with their extents are supported; reshape it");
  }
  if (given.splits_count < 0 || (given.splits_count > 0 && given.splits == nullptr)) {
    return InvalidArgument("splits_count is " + std::to_string(given.splits_count) +
                           " but the splits are missing; pass them, or a count of 0");
  }
  signature.root = given.root;
  signature.priority = given.priority;
  signature.axis_order = given.axis_order;
  signature.group = given.group;
  signature.backend = given.backend;
  signature.prescale = given.prescale;
  signature.postscale = given.postscale;
  if (shaped.ndim > 0) signature.shape.assign(shaped.shape, shaped.shape + shaped.ndim);
  if (given.splits_count > 0) {
    signature.splits.assign(given.splits, given.splits + given.splits_count);
  }
  return Status();
}

Result<OrderedCall> OrderedCallFrom(const rabit_request& given) {
  RABIT_RETURN_IF_ERROR(CheckStructSize(given));
  OrderedCall call;
  RABIT_ASSIGN_OR_RETURN(call.kind, KindOf(given));
  RABIT_ASSIGN_OR_RETURN(call.op, ReduceOpOf(given));
  RABIT_ASSIGN_OR_RETURN(call.input, ViewOf(given.input));
  RABIT_ASSIGN_OR_RETURN(call.output, ViewOf(given.output));
  call.prescale = given.prescale;
  call.postscale = given.postscale;
  call.root = given.root;
  call.group = given.group;
  call.backend = given.backend;
  return call;
}

// request: a new one, filled where it will stay, since moving it is no small part of a submission.
Status FillRequest(const WiredEngine& wired, const rabit_request& given, Request& request) {
  RABIT_RETURN_IF_ERROR(CheckStructSize(given));
  if (given.name != nullptr) request.name = given.name;
  RABIT_ASSIGN_OR_RETURN(request.input, ViewOf(given.input));
  RABIT_ASSIGN_OR_RETURN(request.output, ViewOf(given.output));
  // A rank that only receives describes what it expects by its output.
  const bool has_input =
      given.input.data != nullptr || given.input.ndim > 0 || given.output.data == nullptr;
  const rabit_tensor& shaped = has_input ? given.input : given.output;
  Status status = FillSignature(given, shaped, request.signature);
  if (!status.ok()) {
    return Status(status.code(), "request '" + request.name + "': " + status.message());
  }
  request.signature.dtype = has_input ? request.input.dtype : request.output.dtype;
  request.device = has_input ? request.input.device : request.output.device;
  request.signature.device_kind = request.device.kind;
  if (given.codec != 0) {
    Result<std::string> spec = wired.CodecSpecOf(given.codec);
    if (!spec.ok()) {
      return InvalidArgument("request '" + request.name + "': " + spec.status().message());
    }
    request.signature.codec = std::move(*spec);
  }
  // The residual has the shape and type of the input and an address of its own; null stands for
  // none.
  request.residual = request.input;
  request.residual.data = given.residual;
  request.seed = given.seed;
  request.stream = has_input ? given.input.stream : given.output.stream;
  request.completion = {given.notify, given.notify_context};
  return Status();
}

Status CopyText(const std::string& text, char* to, size_t capacity, size_t* needed) {
  *needed = text.size() + 1;
  if (to == nullptr || capacity == 0) return Status();
  // The caller learns from `needed` that it has a part only, and asks again with more room: the
  // text may have grown in between.
  const size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
  return Status();
}

}  // namespace
}  // namespace rabit

using namespace rabit;  // NOLINT: the functions below are the library's outside

uint32_t rabit_abi_version(void) { return RABIT_ABI_VERSION; }

int32_t rabit_pool_open(const char* options, rabit_pool** pool) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(options);
    RABIT_REQUIRE_POINTER(pool);
    // Set before anything can fail, so that a caller that ignores the code frees nothing.
    *pool = nullptr;
    RABIT_ASSIGN_OR_RETURN(const Options parsed, ParseOptions(options));
    RABIT_ASSIGN_OR_RETURN(std::shared_ptr<ConnectionPool> opened, OpenPool(parsed));
    *pool = new rabit_pool{std::move(opened)};
    return Status();
  });
}

int32_t rabit_start_over(rabit_pool* pool, const char* options, rabit_engine** engine) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(pool);
    RABIT_REQUIRE_POINTER(options);
    RABIT_REQUIRE_POINTER(engine);
    *engine = nullptr;
    RABIT_ASSIGN_OR_RETURN(const Options parsed, ParseOptions(options));
    RABIT_ASSIGN_OR_RETURN(std::unique_ptr<WiredEngine> wired, StartEngineOver(pool->pool, parsed));
    *engine = new rabit_engine{std::move(wired)};
    return Status();
  });
}

void rabit_pool_close(rabit_pool* pool) { delete pool; }

int32_t rabit_start(const char* options, rabit_engine** engine) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(options);
    RABIT_REQUIRE_POINTER(engine);
    *engine = nullptr;
    RABIT_ASSIGN_OR_RETURN(const Options parsed, ParseOptions(options));
    RABIT_ASSIGN_OR_RETURN(std::unique_ptr<WiredEngine> wired, StartWiredEngine(parsed));
    *engine = new rabit_engine{std::move(wired)};
    return Status();
  });
}

int32_t rabit_topology(rabit_engine* engine, int32_t group, int32_t* rank, int32_t* size) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(rank);
    RABIT_REQUIRE_POINTER(size);
    RABIT_ASSIGN_OR_RETURN(const Group found, engine->wired->engine().GetGroup(group));
    *rank = found.my_index;
    *size = found.size();
    return Status();
  });
}

int32_t rabit_add_group(rabit_engine* engine, const int32_t* ranks, int32_t count,
                        int64_t timeout_ms, int32_t* group) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(ranks);
    RABIT_REQUIRE_POINTER(group);
    const std::vector<int> list(ranks, ranks + std::max(count, 0));
    RABIT_ASSIGN_OR_RETURN(*group, engine->wired->engine().AddGroup(list, DeadlineFor(timeout_ms)));
    return Status();
  });
}

int32_t rabit_remove_group(rabit_engine* engine, int32_t group, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    return engine->wired->engine().RemoveGroup(group, DeadlineFor(timeout_ms));
  });
}

int32_t rabit_set_plan(rabit_engine* engine, int32_t group, const char* plan, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(plan);
    return engine->wired->engine().SetPlan(group, plan, DeadlineFor(timeout_ms));
  });
}

int32_t rabit_add_codec(rabit_engine* engine, const char* spec, int32_t* codec) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(spec);
    RABIT_REQUIRE_POINTER(codec);
    RABIT_ASSIGN_OR_RETURN(*codec, engine->wired->AddCodec(spec));
    return Status();
  });
}

int32_t rabit_find_backend(rabit_engine* engine, const char* name, int32_t* backend) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(name);
    RABIT_REQUIRE_POINTER(backend);
    RABIT_ASSIGN_OR_RETURN(*backend, engine->wired->FindBackend(name));
    return Status();
  });
}

int32_t rabit_submit(rabit_engine* engine, const rabit_request* requests, int32_t count,
                     rabit_handle* handles) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    if (count <= 0) return Status();
    RABIT_REQUIRE_POINTER(requests);
    RABIT_REQUIRE_POINTER(handles);
    std::vector<Request> parsed(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) {
      RABIT_RETURN_IF_ERROR(
          FillRequest(*engine->wired, requests[i], parsed[static_cast<size_t>(i)]));
    }
    std::vector<Handle> given(static_cast<size_t>(count));
    RABIT_RETURN_IF_ERROR(engine->wired->engine().Submit(parsed, given));
    for (int32_t i = 0; i < count; ++i) handles[i] = given[static_cast<size_t>(i)].value;
    return Status();
  });
}

int32_t rabit_refuse(rabit_engine* engine, const rabit_request* given, const char* reason) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(given);
    RABIT_REQUIRE_POINTER(reason);
    RABIT_RETURN_IF_ERROR(CheckStructSize(*given));
    Request request;
    if (given->name != nullptr) request.name = given->name;
    RABIT_ASSIGN_OR_RETURN(request.signature.kind, KindOf(*given));
    request.signature.group = given->group;
    request.signature.root = given->root;
    engine->wired->engine().Refuse(request, InvalidArgument(reason));
    return Status();
  });
}

int32_t rabit_run(rabit_engine* engine, const rabit_request* request, int64_t timeout_ms,
                  rabit_handle* handle) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(request);
    RABIT_REQUIRE_POINTER(handle);
    *handle = 0;
    Request parsed;
    RABIT_RETURN_IF_ERROR(FillRequest(*engine->wired, *request, parsed));
    Handle given;
    const Status status =
        engine->wired->engine().Run(std::move(parsed), given, DeadlineFor(timeout_ms));
    *handle = given.value;
    return status;
  });
}

int32_t rabit_run_ordered(rabit_engine* engine, const rabit_request* request, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(request);
    RABIT_ASSIGN_OR_RETURN(const OrderedCall call, OrderedCallFrom(*request));
    return engine->wired->engine().RunOrdered(call, DeadlineFor(timeout_ms));
  });
}

int32_t rabit_wait(rabit_engine* engine, rabit_handle handle, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    Engine& waited = engine->wired->engine();
    // Below -1 the caller comes back at once after the slice, to look for signals; see rabit_wait
    // in the header.
    if (timeout_ms >= -1) return waited.Wait(Handle{handle}, DeadlineFor(timeout_ms));
    return waited.WaitSlice(Handle{handle}, After(std::chrono::milliseconds(-timeout_ms)));
  });
}

int32_t rabit_wait_on_stream(rabit_engine* engine, rabit_handle handle, uint64_t stream,
                             int64_t timeout_ms) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    return engine->wired->engine().WaitOnStream(Handle{handle}, stream, DeadlineFor(timeout_ms));
  });
}

int32_t rabit_wait_any(rabit_engine* engine, const rabit_handle* handles, int32_t count,
                       int64_t timeout_ms, int32_t* which, uint64_t* news) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(which);
    *which = -1;
    if (count < 0 || (count > 0 && handles == nullptr)) {
      return InvalidArgument("rabit_wait_any: " + std::to_string(count) +
                             " handles are announced but not there; pass them, or a count of 0");
    }
    std::vector<Handle> wanted;
    wanted.reserve(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) wanted.push_back(Handle{handles[i]});
    RABIT_ASSIGN_OR_RETURN(*which,
                           engine->wired->engine().WaitAny(wanted, news, DeadlineFor(timeout_ms)));
    return Status();
  });
}

int32_t rabit_is_done(rabit_engine* engine, rabit_handle handle, int32_t* done) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(done);
    RABIT_ASSIGN_OR_RETURN(const bool is_done, engine->wired->engine().IsDone(Handle{handle}));
    *done = is_done ? 1 : 0;
    return Status();
  });
}

int32_t rabit_output(rabit_engine* engine, rabit_handle handle, rabit_tensor* output,
                     int64_t* shape, int64_t* splits) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(output);
    RABIT_REQUIRE_POINTER(shape);
    RABIT_ASSIGN_OR_RETURN(const HandleOutput found,
                           engine->wired->engine().Output(Handle{handle}));
    // The caller's array has room for 8; FillSignature refuses more, so this is a defect of ours.
    if (found.shape.size() > kDimensionsMax) return Internal("an output has over 8 dimensions");
    std::copy(found.shape.begin(), found.shape.end(), shape);
    if (splits != nullptr) {
      std::copy(found.received_splits.begin(), found.received_splits.end(), splits);
    }
    *output = rabit_tensor{};
    output->data = found.view.data;
    output->count = found.view.count;
    output->shape = shape;
    output->ndim = static_cast<int32_t>(found.shape.size());
    output->dtype = static_cast<int32_t>(found.view.dtype);
    output->device_kind = static_cast<int32_t>(found.view.device.kind);
    output->device_index = found.view.device.index;
    return Status();
  });
}

int32_t rabit_release(rabit_engine* engine, rabit_handle handle) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    engine->wired->engine().Release(Handle{handle});
    return Status();
  });
}

int32_t rabit_propose_tunables(rabit_engine* engine, const rabit_tunables* tunables) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(tunables);
    Tunables given;
    given.partition_bytes = tunables->partition_bytes;
    given.fusion_bytes = tunables->fusion_bytes;
    given.credit_bytes = tunables->credit_bytes;
    given.lanes = tunables->lanes;
    return engine->wired->engine().Propose(given);
  });
}

int32_t rabit_reset_tunables(rabit_engine* engine) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    return engine->wired->engine().ResetTunables();
  });
}

int32_t rabit_update(rabit_engine* engine, uint64_t key, int32_t mode, void* data, int64_t count,
                     int32_t dtype, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(data);
    const auto type = DTypeFrom(dtype);
    if (mode < RABIT_UPDATE_ADD || mode > RABIT_UPDATE_CLOCK || !type.has_value() || count < 1 ||
        (mode == RABIT_UPDATE_CLOCK && (*type != DType::kInt64 || count != 2))) {
      return InvalidArgument("an update of mode " + std::to_string(mode) + ", type " +
                             std::to_string(dtype) + " and " + std::to_string(count) +
                             " elements cannot be; see rabit_update_mode");
    }
    return engine->wired->Update(static_cast<PushMode>(mode), key, {data, count, *type, {}},
                                 After(std::chrono::milliseconds(timeout_ms)));
  });
}

int32_t rabit_measure_flows(rabit_engine* engine, const int32_t* flows, int32_t count,
                            double* found, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(flows);
    RABIT_REQUIRE_POINTER(found);
    std::vector<Flow> measured;
    for (int32_t i = 0; i < count; ++i, flows += 3) {
      measured.push_back({flows[0], flows[1], flows[2]});
    }
    RABIT_RETURN_IF_ERROR(engine->wired->MeasureFlows(measured, DeadlineFor(timeout_ms)));
    for (const Flow& flow : measured) {
      *found++ = flow.bytes_per_second;
      *found++ = static_cast<double>(flow.bytes);
    }
    return Status();
  });
}

int32_t rabit_start_timeline(rabit_engine* engine, const char* path, int32_t mark_cycles) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(path);
    return engine->wired->engine().StartTimeline(path, mark_cycles != 0);
  });
}

int32_t rabit_stop_timeline(rabit_engine* engine) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    return engine->wired->engine().StopTimeline();
  });
}

int32_t rabit_stats(rabit_engine* engine, char* json, size_t capacity, size_t* needed) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(needed);
    return CopyText(engine->wired->engine().StatisticsJson(), json, capacity, needed);
  });
}

int32_t rabit_stop(rabit_engine* engine, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    return engine->wired->Stop(DeadlineFor(timeout_ms));
  });
}

int32_t rabit_abort(rabit_engine* engine, const char* reason, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(engine);
    RABIT_REQUIRE_POINTER(reason);
    engine->wired->engine().Abort(reason, DeadlineFor(timeout_ms));
    return Status();
  });
}

// The destructor stops the engine with a short patience; threads that do not end keep what they use
// alive.
void rabit_free(rabit_engine* engine) { delete engine; }

int32_t rabit_serve(const char* options) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(options);
    RABIT_ASSIGN_OR_RETURN(const Options parsed, ParseOptions(options));
    return ServeJobs(parsed);
  });
}

int32_t rabit_capabilities(char* json, size_t capacity, size_t* needed) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(needed);
    return CopyText(CapabilitiesJson(), json, capacity, needed);
  });
}

int32_t rabit_describe_cuda(char* json, size_t capacity, size_t* needed) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(needed);
    return CopyText(CudaJson(), json, capacity, needed);
  });
}

int32_t rabit_describe_nccl(const char* library, char* json, size_t capacity, size_t* needed) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(library);
    RABIT_REQUIRE_POINTER(needed);
    return CopyText(NcclJson(library), json, capacity, needed);
  });
}
