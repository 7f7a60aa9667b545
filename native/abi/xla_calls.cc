// Collectives inside of programs that XLA compiles: the handler of their custom calls.
//
// A call submits one request for each array.  It blocks XLA's thread, which then does the engine's
// work, or XLA gets a future and computes meanwhile.  The rest of the program runs where a future
// is set: on a thread of its own, never on one of the engine.
//
// The frame has arrays in and as many out, in the memory of the host, and tokens.  Attributes, int64:
// "xla" (the address of a rabit_xla), "kind", "reduce_op", "root" of a request, "waits" (not 0: it
// blocks); text: "name", of several arrays "name.0" and so on.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "abi/error_class.h"
#include "abi/xla_ffi.h"
#include "base/bytes.h"
#include "base/mutex.h"
#include "include/rabit_abi.h"

namespace rabit {
namespace {

constexpr int32_t kCpu = 1;  // DLPack's code

struct Failure {
  int32_t code = RABIT_OK;
  std::string message;
};

// One call of a program that has not finished.  Belongs to the requests until the last has ended.
struct XlaCall {
  rabit_xla* xla = nullptr;
  rabit_engine* engine = nullptr;
  const xla::Api* api = nullptr;
  xla::Future* future = nullptr;
  std::vector<rabit_handle> handles;
  std::atomic<size_t> unfinished = 0;
  Mutex mutex;
  Failure failure RABIT_GUARDED_BY(mutex);  // the first one

  void Fail(int32_t code, const char* message) {
    MutexLock lock(mutex);
    if (failure.code == RABIT_OK) failure = {code, message};
  }
};

}  // namespace
}  // namespace rabit

// Thread-safe.
struct rabit_xla {
  std::atomic<rabit_engine*> engine = nullptr;

  // Starts the thread if there is none.  Throws std::system_error if the system gives none.
  void EnsureThread();
  void Finished(rabit::XlaCall* call);

 private:
  [[noreturn]] void Run();

  rabit::Mutex mutex_;
  rabit::CondVar changed_;
  bool has_thread_ RABIT_GUARDED_BY(mutex_) = false;
  std::deque<rabit::XlaCall*> finished_ RABIT_GUARDED_BY(mutex_);
};

namespace rabit {
namespace {

// Codes of absl::Status.
int32_t XlaCode(int32_t code) {
  switch (code) {
    case RABIT_INVALID_ARGUMENT:
    case RABIT_MISMATCH:
      return 3;
    case RABIT_TIMED_OUT:
      return 4;
    case RABIT_RESOURCE_EXHAUSTED:
      return 8;
    case RABIT_ABORTED:
      return 10;
    case RABIT_UNSUPPORTED:
      return 12;
    case RABIT_PEER_LOST:
      return 14;
    default:
      return 13;
  }
}

xla::Error* ErrorOf(const xla::Api* api, const Failure& failure) {
  const std::string text = std::string(ErrorClass(failure.code)) + ": " + failure.message;
  xla::ErrorArguments arguments = {
      {sizeof(arguments), nullptr}, text.c_str(), XlaCode(failure.code)};
  return api->create_error(&arguments);
}

void SetFuture(XlaCall& call) {
  Failure failure;
  {
    MutexLock lock(call.mutex);
    failure = std::move(call.failure);
  }
  xla::FutureArguments arguments = {{sizeof(arguments), nullptr}, call.future, nullptr};
  if (failure.code == RABIT_OK) {
    static_cast<void>(call.api->set_available(&arguments));
    return;
  }
  arguments.error = ErrorOf(call.api, failure);
  static_cast<void>(call.api->set_error(&arguments));
}

// On a thread of the engine, or on one that ends it.
void FinishOne(XlaCall* call) {
  if (call->unfinished.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  // Here, where the engine still is.
  for (const rabit_handle handle : call->handles) {
    if (handle != 0) rabit_release(call->engine, handle);
  }
  call->xla->Finished(call);
}

void OnFinished(void* context, int32_t code, const char* message) {
  auto* call = static_cast<XlaCall*>(context);
  if (code != RABIT_OK) call->Fail(code, message);
  FinishOne(call);
}

int32_t DtypeOf(xla::Type type) {
  switch (type) {
    case xla::Type::kBool:
      return RABIT_BOOL;
    case xla::Type::kInt8:
      return RABIT_INT8;
    case xla::Type::kInt16:
      return RABIT_INT16;
    case xla::Type::kInt32:
      return RABIT_INT32;
    case xla::Type::kInt64:
      return RABIT_INT64;
    case xla::Type::kUint8:
      return RABIT_UINT8;
    case xla::Type::kUint16:
      return RABIT_UINT16;
    case xla::Type::kUint32:
      return RABIT_UINT32;
    case xla::Type::kUint64:
      return RABIT_UINT64;
    case xla::Type::kFloat16:
      return RABIT_FLOAT16;
    case xla::Type::kFloat32:
      return RABIT_FLOAT32;
    case xla::Type::kFloat64:
      return RABIT_FLOAT64;
    case xla::Type::kComplex64:
      return RABIT_COMPLEX64;
    case xla::Type::kComplex128:
      return RABIT_COMPLEX128;
    case xla::Type::kBfloat16:
      return RABIT_BFLOAT16;
    case xla::Type::kFloat8E5m2:
      return RABIT_FLOAT8_E5M2;
    case xla::Type::kFloat8E4m3fn:
      return RABIT_FLOAT8_E4M3FN;
    case xla::Type::kFloat8E5m2fnuz:
      return RABIT_FLOAT8_E5M2FNUZ;
    case xla::Type::kFloat8E4m3fnuz:
      return RABIT_FLOAT8_E4M3FNUZ;
    case xla::Type::kFloat8E8m0fnu:
      return RABIT_FLOAT8_E8M0FNU;
    default:
      return -1;
  }
}

rabit_tensor TensorOf(const xla::Buffer& buffer) {
  rabit_tensor tensor = {};
  tensor.data = buffer.data;
  tensor.count = 1;
  for (int64_t axis = 0; axis < buffer.rank; ++axis) tensor.count *= buffer.extents[axis];
  tensor.shape = buffer.rank > 0 ? buffer.extents : nullptr;
  tensor.ndim = static_cast<int32_t>(buffer.rank);
  tensor.dtype = DtypeOf(buffer.type);
  tensor.device_kind = kCpu;
  return tensor;
}

// The arrays among what an ordered program passes.
std::vector<rabit_tensor> TensorsOf(const xla::Buffers& given) {
  std::vector<rabit_tensor> tensors;
  for (int64_t i = 0; i < given.count; ++i) {
    const xla::Buffer& buffer = *given.buffers[i];
    if (buffer.type != xla::Type::kToken) tensors.push_back(TensorOf(buffer));
  }
  return tensors;
}

// What the attributes of a call say.
struct Meaning {
  rabit_xla* xla = nullptr;
  int32_t kind = -1;
  int32_t reduce_op = RABIT_SUM;
  int32_t root = -1;
  bool waits = true;
  std::string name;

  explicit Meaning(const xla::Attributes& given) {
    for (int64_t i = 0; i < given.count; ++i) {
      const std::string key(given.names[i]->data, given.names[i]->size);
      if (given.kinds[i] == xla::AttributeKind::kText) {
        const auto* text = static_cast<const xla::Text*>(given.values[i]);
        if (key == "name") name.assign(text->data, text->size);
      } else if (given.kinds[i] == xla::AttributeKind::kScalar) {
        const auto* scalar = static_cast<const xla::Scalar*>(given.values[i]);
        if (scalar->type == xla::Type::kInt64)
          Set(key, *static_cast<const int64_t*>(scalar->value));
      }
    }
  }

 private:
  void Set(const std::string& key, int64_t value) {
    if (key == "xla") xla = reinterpret_cast<rabit_xla*>(value);
    if (key == "kind") kind = static_cast<int32_t>(value);
    if (key == "reduce_op") reduce_op = static_cast<int32_t>(value);
    if (key == "root") root = static_cast<int32_t>(value);
    if (key == "waits") waits = value != 0;
  }
};

// The requests of a call, with what they point to.
class Requests {
 public:
  Requests(const Meaning& meaning, const xla::Frame& frame)
      : inputs_(TensorsOf(frame.arguments)), outputs_(TensorsOf(frame.results)) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      names_.push_back(inputs_.size() == 1 ? meaning.name : meaning.name + "." + std::to_string(i));
      rabit_request request = {};
      request.struct_size = sizeof(request);
      request.kind = meaning.kind;
      request.reduce_op = meaning.reduce_op;
      request.root = meaning.root;
      request.backend = -1;
      request.prescale = 1.0;
      request.postscale = 1.0;
      request.name = names_.back().c_str();
      request.input = inputs_[i];
      request.output = i < outputs_.size() ? outputs_[i] : rabit_tensor{};
      list_.push_back(request);
    }
  }

  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  std::vector<rabit_request>& list() { return list_; }

 private:
  std::vector<rabit_tensor> inputs_;
  std::vector<rabit_tensor> outputs_;
  std::deque<std::string> names_;
  std::vector<rabit_request> list_;
};

Failure RunAll(rabit_engine* engine, const std::vector<rabit_request>& requests) {
  Failure failure;
  std::vector<rabit_handle> handles(requests.size());
  const bool is_one = requests.size() == 1;
  int32_t code = is_one ? rabit_run(engine, requests.data(), -1, handles.data())
                        : rabit_submit(engine, requests.data(),
                                       static_cast<int32_t>(requests.size()), handles.data());
  if (code != RABIT_OK) failure = {code, rabit_last_error()};
  for (const rabit_handle handle : handles) {
    if (handle == 0) continue;
    code = is_one ? code : rabit_wait(engine, handle, -1);
    if (code != RABIT_OK && failure.code == RABIT_OK) failure = {code, rabit_last_error()};
    rabit_release(engine, handle);
  }
  return failure;
}

// The future of requests that are under way; or null, and why.
xla::Future* StartAll(rabit_xla* xla, rabit_engine* engine, const xla::Api* api,
                      std::vector<rabit_request>& requests, Failure& failure) {
  xla->EnsureThread();
  xla::FutureArguments made = {{sizeof(made) - sizeof(made.error), nullptr}, nullptr, nullptr};
  made.head.size = offsetof(xla::FutureArguments, future) + sizeof(made.future);
  if (api->create_future(&made) != nullptr) {
    failure = {RABIT_INTERNAL, "XLA gave no future; report this"};
    return nullptr;
  }
  auto* call = new XlaCall;
  call->xla = xla;
  call->engine = engine;
  call->api = api;
  call->future = made.future;
  call->handles.resize(requests.size());
  for (rabit_request& request : requests) {
    request.notify = OnFinished;
    request.notify_context = call;
  }
  // One more than the requests: this function itself, so that nothing ends before the handles are
  // known.
  call->unfinished.store(requests.size() + 1, std::memory_order_relaxed);
  const int32_t code = rabit_submit(engine, requests.data(), static_cast<int32_t>(requests.size()),
                                    call->handles.data());
  if (code != RABIT_OK) {
    call->Fail(code, rabit_last_error());
    call->unfinished.store(1, std::memory_order_relaxed);
  }
  FinishOne(call);
  return made.future;
}

// True if the frame only asks what the handler is.
bool OnlyAsks(void* extensions) {
  for (auto* extension = static_cast<xla::Extension*>(extensions); extension != nullptr;
       extension = extension->next) {
    if (extension->type != xla::kMetadataExtension) continue;
    extension->metadata->version.major = xla::kMajorVersion;
    extension->metadata->version.minor = xla::kMinorVersion;
    return true;
  }
  return false;
}

xla::Error* Execute(xla::Frame& frame) {
  const Meaning meaning(frame.attributes);
  rabit_engine* engine =
      meaning.xla == nullptr ? nullptr : meaning.xla->engine.load(std::memory_order_acquire);
  Failure failure;
  if (engine == nullptr) {
    failure = {
        RABIT_INVALID_ARGUMENT,
        "'" + meaning.name +
            "' runs, but rabit is not initialized or has been shut down; call rabit.init() first"};
    return ErrorOf(frame.api, failure);
  }
  Requests requests(meaning, frame);
  if (meaning.waits) {
    failure = RunAll(engine, requests.list());
  } else {
    frame.future = StartAll(meaning.xla, engine, frame.api, requests.list(), failure);
  }
  return failure.code == RABIT_OK ? nullptr : ErrorOf(frame.api, failure);
}

}  // namespace
}  // namespace rabit

void rabit_xla::EnsureThread() {
  rabit::MutexLock lock(mutex_);
  if (has_thread_) return;
  std::thread([this] { Run(); }).detach();
  has_thread_ = true;
}

void rabit_xla::Finished(rabit::XlaCall* call) {
  rabit::MutexLock lock(mutex_);
  finished_.push_back(call);
  changed_.NotifyAll();
}

void rabit_xla::Run() {
  while (true) {
    rabit::XlaCall* call = nullptr;
    {
      rabit::MutexLock lock(mutex_);
      while (finished_.empty()) {
        static_cast<void>(changed_.WaitUntil(mutex_, rabit::After(std::chrono::hours(1))));
      }
      call = finished_.front();
      finished_.pop_front();
    }
    rabit::SetFuture(*call);
    delete call;
  }
}

rabit_xla* rabit_xla_open(void) { return new (std::nothrow) rabit_xla; }

void rabit_xla_use(rabit_xla* xla, rabit_engine* engine) {
  xla->engine.store(engine, std::memory_order_release);
}

void* rabit_xla_run(void* given) {
  auto* frame = static_cast<rabit::xla::Frame*>(given);
  if (rabit::OnlyAsks(frame->head.extensions)) return nullptr;
  if (frame->stage != rabit::xla::kExecute) return nullptr;
  try {
    return rabit::Execute(*frame);
  } catch (const std::bad_alloc&) {
    return rabit::ErrorOf(frame->api, {RABIT_RESOURCE_EXHAUSTED, "memory is short"});
  } catch (const std::system_error& error) {
    return rabit::ErrorOf(frame->api, {RABIT_RESOURCE_EXHAUSTED, error.what()});
  }
}
