#include "base/device/cuda_driver.h"

#include <unistd.h>

#include <string_view>
#include <vector>

#include "base/device/cuda_functions.h"
#include "base/dynamic_library.h"
#include "base/mutex.h"

namespace rabit {
namespace {

constexpr const char* kUsualName = "libcuda.so.1";
constexpr const char* kAdvice =
    "CUDA tensors need NVIDIA's driver: install it, or in a container start with GPU support "
    "(docker run --gpus all)";

constexpr const char* kForked =
    "this process was forked after CUDA was started, and CUDA does not work in a child; start "
    "processes with the method 'spawn'";

// The symbols of the loaded library.
struct Functions {
#define RABIT_CUDA_MEMBER(name, ...) cuda::name##_type* name = nullptr;
  RABIT_CUDA_FUNCTIONS(RABIT_CUDA_MEMBER)
#undef RABIT_CUDA_MEMBER
};

Result<Functions> FindFunctions(const DynamicLibrary& library) {
  Functions functions;
#define RABIT_CUDA_FIND(name, ...) RABIT_RETURN_IF_ERROR(library.Find(#name, functions.name));
  RABIT_CUDA_FUNCTIONS(RABIT_CUDA_FIND)
#undef RABIT_CUDA_FIND
  return functions;
}

class CudaDriver final : public DeviceDriver {
 public:
  CudaDriver(const Functions& functions, std::string path, int32_t version, int32_t devices)
      : cu_(functions),
        path_(std::move(path)),
        version_(version),
        process_(::getpid()),
        devices_(devices),
        contexts_(static_cast<size_t>(devices)) {}
  ~CudaDriver() override;

  std::string_view name() const override { return "cuda"; }
  int devices() const override { return devices_; }
  void Write(JsonWriter& json) const override;

  Result<void*> CreateStream(int device) override;
  void DestroyStream(int device, void* stream) override;
  Result<void*> CreateEvent(int device) override;
  void DestroyEvent(int device, void* event) override;
  Result<void*> AllocatePinned(int device, size_t bytes) override;
  void FreePinned(int device, void* memory) override;
  Result<void*> Allocate(int device, size_t bytes) override;
  void Free(int device, void* memory) override;
  Status Run(int device, const std::function<Status()>& call) override;
  Status CheckRuns(int device, void* stream) override;
  Status Record(int device, void* event, void* stream) override;
  Status Await(int device, void* stream, void* event) override;
  Result<bool> IsOver(int device, void* event) override;
  Status CopyToHost(int device, void* stream, void* to, const void* from, size_t bytes) override;
  Status CopyToDevice(int device, void* stream, void* to, const void* from, size_t bytes) override;
  Status CopyWithin(int device, void* stream, void* to, const void* from, size_t bytes) override;

 private:
  struct Primary {
    cuda::Device device = 0;
    cuda::Context context = nullptr;  // null: not retained yet
  };

  // Makes the call `what` with the device's context current, as the caller's thread may have
  // another one, which it keeps.
  template <class Call>
  Status In(int device, const char* what, Call call);
  // With the context current.
  template <class Call>
  Status Relaxed(int device, const char* what, Call call);
  Result<cuda::Context> ContextOf(int device);
  Status Failed(const char* what, int device, cuda::Result result) const;

  const Functions cu_;
  const std::string path_;
  const int32_t version_;
  const pid_t process_;
  const int devices_;
  Mutex mutex_;
  std::vector<Primary> contexts_ RABIT_GUARDED_BY(mutex_);
};

cuda::Stream AsStream(void* stream) { return static_cast<cuda::Stream>(stream); }
cuda::Event AsEvent(void* event) { return static_cast<cuda::Event>(event); }
cuda::Pointer AsPointer(const void* memory) { return reinterpret_cast<cuda::Pointer>(memory); }

std::string Explain(const Functions& cu, cuda::Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  (void)cu.cuGetErrorName(result, &name);
  (void)cu.cuGetErrorString(result, &text);
  return std::string(name == nullptr ? "error" : name) + " (" + std::to_string(result) + ", " +
         (text == nullptr ? "unknown" : text) + ")";
}

CudaDriver::~CudaDriver() {
  // A forked child has the object and no CUDA: the release would act on the parent's context, or
  // crash.
  if (::getpid() != process_) return;
  // Nobody else has the driver any more, so the lock is not needed; streams and events have gone
  // before it.
  for (const Primary& primary : contexts_) {
    if (primary.context != nullptr) (void)cu_.cuDevicePrimaryCtxRelease_v2(primary.device);
  }
}

void CudaDriver::Write(JsonWriter& json) const {
  json.Member("library", path_);
  json.Member("version",
              std::to_string(version_ / 1000) + "." + std::to_string(version_ % 1000 / 10));
  json.Member("devices", devices());
}

Status CudaDriver::Failed(const char* what, int device, cuda::Result result) const {
  const std::string where = std::string(what) + " on CUDA device " + std::to_string(device) +
                            " failed: " + Explain(cu_, result);
  if (result == cuda::kOutOfMemory) {
    return ResourceExhausted(where +
                             "; free memory (torch keeps what it has freed: "
                             "torch.cuda.empty_cache()), or lower partition_bytes and "
                             "fusion_bytes");
  }
  return Internal(
      where +
      "; after an error of a kernel every later call fails: look for the first one, with "
      "CUDA_LAUNCH_BLOCKING=1");
}

Result<cuda::Context> CudaDriver::ContextOf(int device) {
  if (::getpid() != process_) {
    return Unsupported(kForked);
  }
  if (device < 0 || device >= devices()) {
    return InvalidArgument("there is no CUDA device " + std::to_string(device) +
                           ": the driver has " + std::to_string(devices()) +
                           "; look at CUDA_VISIBLE_DEVICES and the tensor's device");
  }
  MutexLock lock(mutex_);
  Primary& primary = contexts_[static_cast<size_t>(device)];
  // A context that is retained stays until the destructor, so the pointer is good without the lock.
  if (primary.context != nullptr) return primary.context;
  cuda::Result result = cu_.cuDeviceGet(&primary.device, device);
  if (result != cuda::kSuccess) return Failed("cuDeviceGet", device, result);
  // The primary context is the one that PyTorch uses: memory of another context could not be read.
  result = cu_.cuDevicePrimaryCtxRetain(&primary.context, primary.device);
  if (result == cuda::kSuccess) return primary.context;
  primary.context = nullptr;
  return Failed("cuDevicePrimaryCtxRetain", device, result);
}

template <class Call>
Status CudaDriver::In(int device, const char* what, Call call) {
  RABIT_ASSIGN_OR_RETURN(const cuda::Context context, ContextOf(device));
  cuda::Result result = cu_.cuCtxPushCurrent_v2(context);
  if (result != cuda::kSuccess) return Failed("cuCtxPushCurrent", device, result);
  // Whatever it returns, the context is popped below: a thread of the program must get back its
  // own.
  const Status status = Relaxed(device, what, call);
  cuda::Context popped = nullptr;
  const cuda::Result pop = cu_.cuCtxPopCurrent_v2(&popped);
  if (status.ok() && pop != cuda::kSuccess) return Failed("cuCtxPopCurrent", device, pop);
  return status;
}

// While a thread captures a graph, what may wait for the device, as a look at an event or an
// allocation does, is forbidden to all threads and loses the graph.  None of it concerns the graph:
// what is on a stream that captures is refused (CheckRuns).
template <class Call>
Status CudaDriver::Relaxed(int device, const char* what, Call call) {
  int32_t mode = cuda::kCaptureModeRelaxed;
  cuda::Result result = cu_.cuThreadExchangeStreamCaptureMode(&mode);
  if (result != cuda::kSuccess) {
    return Failed("cuThreadExchangeStreamCaptureMode", device, result);
  }
  result = call();
  (void)cu_.cuThreadExchangeStreamCaptureMode(&mode);
  return result == cuda::kSuccess ? Status() : Failed(what, device, result);
}

Result<void*> CudaDriver::CreateStream(int device) {
  cuda::Stream stream = nullptr;
  RABIT_RETURN_IF_ERROR(In(device, "cuStreamCreate",
                           [&] { return cu_.cuStreamCreate(&stream, cuda::kStreamNonBlocking); }));
  return static_cast<void*>(stream);
}

// Destructors have nobody to tell, and a context that has failed frees everything with itself.
void CudaDriver::DestroyStream(int device, void* stream) {
  (void)In(device, "cuStreamDestroy", [&] { return cu_.cuStreamDestroy_v2(AsStream(stream)); });
}

Result<void*> CudaDriver::CreateEvent(int device) {
  cuda::Event event = nullptr;
  RABIT_RETURN_IF_ERROR(In(device, "cuEventCreate",
                           [&] { return cu_.cuEventCreate(&event, cuda::kEventDisableTiming); }));
  return static_cast<void*>(event);
}

void CudaDriver::DestroyEvent(int device, void* event) {
  (void)In(device, "cuEventDestroy", [&] { return cu_.cuEventDestroy_v2(AsEvent(event)); });
}

Result<void*> CudaDriver::AllocatePinned(int device, size_t bytes) {
  void* memory = nullptr;
  RABIT_RETURN_IF_ERROR(In(device, "cuMemHostAlloc", [&] {
    // Portable: every device of the process may copy from and to it.
    return cu_.cuMemHostAlloc(&memory, bytes, cuda::kHostAllocPortable);
  }));
  return memory;
}

void CudaDriver::FreePinned(int device, void* memory) {
  (void)In(device, "cuMemFreeHost", [&] { return cu_.cuMemFreeHost(memory); });
}

Result<void*> CudaDriver::Allocate(int device, size_t bytes) {
  cuda::Pointer memory = 0;
  RABIT_RETURN_IF_ERROR(
      In(device, "cuMemAlloc", [&] { return cu_.cuMemAlloc_v2(&memory, bytes); }));
  return reinterpret_cast<void*>(memory);
}

void CudaDriver::Free(int device, void* memory) {
  (void)In(device, "cuMemFree", [&] { return cu_.cuMemFree_v2(AsPointer(memory)); });
}

Status CudaDriver::Run(int device, const std::function<Status()>& call) {
  Status status;
  RABIT_RETURN_IF_ERROR(In(device, "a call on the device", [&] {
    status = call();
    return cuda::kSuccess;
  }));
  return status;
}

Status CudaDriver::CheckRuns(int device, void* stream) {
  int32_t status = cuda::kCaptureStatusNone;
  RABIT_RETURN_IF_ERROR(In(device, "cuStreamIsCapturing", [&] {
    const cuda::Result result = cu_.cuStreamIsCapturing(AsStream(stream), &status);
    if (result != cuda::kCaptureImplicit) return result;
    status = ~cuda::kCaptureStatusNone;  // of a stream that the default one waits for
    return cuda::kSuccess;
  }));
  if (status == cuda::kCaptureStatusNone) return Status();
  return Unsupported(
      "the current stream is capturing a CUDA graph, which cannot contain a collective that goes "
      "through the host; call it outside of the capture");
}

Status CudaDriver::Record(int device, void* event, void* stream) {
  return In(device, "cuEventRecord",
            [&] { return cu_.cuEventRecord(AsEvent(event), AsStream(stream)); });
}

Status CudaDriver::Await(int device, void* stream, void* event) {
  return In(device, "cuStreamWaitEvent",
            [&] { return cu_.cuStreamWaitEvent(AsStream(stream), AsEvent(event), 0); });
}

Result<bool> CudaDriver::IsOver(int device, void* event) {
  bool is_over = false;
  RABIT_RETURN_IF_ERROR(In(device, "cuEventQuery", [&] {
    const cuda::Result result = cu_.cuEventQuery(AsEvent(event));
    is_over = result == cuda::kSuccess;
    // Not ready is an answer and no failure; an error of a kernel that ran before also shows here.
    return result == cuda::kNotReady ? cuda::kSuccess : result;
  }));
  return is_over;
}

Status CudaDriver::CopyToHost(int device, void* stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return Status();
  return In(device, "cuMemcpyDtoHAsync",
            // With ordinary memory the call would block until the copy is done, which is why the
            // host's side is pinned.
            [&] { return cu_.cuMemcpyDtoHAsync_v2(to, AsPointer(from), bytes, AsStream(stream)); });
}

Status CudaDriver::CopyToDevice(int device, void* stream, void* to, const void* from,
                                size_t bytes) {
  if (bytes == 0) return Status();
  return In(device, "cuMemcpyHtoDAsync",
            [&] { return cu_.cuMemcpyHtoDAsync_v2(AsPointer(to), from, bytes, AsStream(stream)); });
}

Status CudaDriver::CopyWithin(int device, void* stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return Status();
  return In(device, "cuMemcpyDtoDAsync", [&] {
    return cu_.cuMemcpyDtoDAsync_v2(AsPointer(to), AsPointer(from), bytes, AsStream(stream));
  });
}

}  // namespace

Result<std::shared_ptr<DeviceDriver>> LoadCudaDriver(const std::string& library) {
  const std::vector<std::string> names = {library.empty() ? kUsualName : library};
  RABIT_ASSIGN_OR_RETURN(const DynamicLibrary loaded, DynamicLibrary::Open(names, kAdvice));
  RABIT_ASSIGN_OR_RETURN(const Functions cu, FindFunctions(loaded));
  const auto refuse = [&](const char* what, cuda::Result result) {
    return Unsupported(std::string(what) + " of " + loaded.name() + " failed: " +
                       Explain(cu, result) + ". " + kAdvice + ", and look at CUDA_VISIBLE_DEVICES");
  };
  int32_t version = 0;
  int32_t devices = 0;
  if (const cuda::Result result = cu.cuInit(0); result != cuda::kSuccess) {
    if (result == cuda::kNotInitialized) return Unsupported(kForked);
    return refuse("cuInit", result);
  }
  if (const cuda::Result result = cu.cuDriverGetVersion(&version); result != cuda::kSuccess) {
    return refuse("cuDriverGetVersion", result);
  }
  if (const cuda::Result result = cu.cuDeviceGetCount(&devices); result != cuda::kSuccess) {
    return refuse("cuDeviceGetCount", result);
  }
  if (devices == 0) return refuse("cuDeviceGetCount", cuda::kNoDevice);
  return std::shared_ptr<DeviceDriver>(
      std::make_shared<CudaDriver>(cu, loaded.name(), version, devices));
}

}  // namespace rabit
