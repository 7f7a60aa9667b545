// A CUDA driver for tests without a GPU: a shared library with the driver's names.  A stream is a
// queue with seeded delays, and a thread while it has work; the memory of a device is mapped twice,
// once where the host may not touch it, which is its address, and once for the streams.
#include "testing/emulated_cuda/emulated_cuda.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace rabit::cuda;           // NOLINT: the driver's own words
using namespace rabit::emulated_cuda;  // NOLINT

constexpr int kDevicesMax = 64;
constexpr int32_t kVersion = 12080;

struct StreamState {
  int device = 0;
  std::deque<std::function<void()>> queue;
  bool is_working = false;
  bool has_thread = false;
  bool is_closed = false;
  std::minstd_rand random;
};

struct EventState {
  int device = 0;
  bool is_owned = true;
  uint64_t recorded = 0;  // how often
  uint64_t reached = 0;   // the last of those that is done
  int references = 1;     // the owner and the work that names it
};

struct DeviceMemory {
  std::byte* inside = nullptr;
  size_t bytes = 0;
  int device = 0;
};

struct Failure {
  uint64_t skip = 0;
  Result error = kSuccess;
};

// One lock for all: a driver of tests has time.
struct Driver {
  std::mutex mutex;
  std::condition_variable changed;
  int32_t devices = 2;
  uint64_t seed = 1;
  uint32_t delay_us_max = 0;
  int32_t capture_status = kCaptureStatusNone;
  bool holds_copies = false;  // to a device
  Result broken = kSuccess;   // what every call gives
  Counts counts;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, Failure> failures;
  std::map<uintptr_t, size_t> pinned;
  std::map<Pointer, uint64_t> copied_from;  // the numbers of copies to the host
  uint64_t copied = 0;
  std::map<uintptr_t, DeviceMemory> memory;
  std::map<int, StreamState*> default_streams;
  // The contexts of a thread, the current one last.  Not thread-local: what a thread of a library
  // that was loaded later leaves there, TSan sees freed by another.
  std::map<std::thread::id, std::vector<int>> contexts;
  std::map<std::thread::id, int32_t> capture_modes;  // 0, global, where there is none
  pid_t process = 0;                                 // that has started the driver
  // A broken driver destroys none of these.
  std::set<StreamState*> streams;
  std::set<EventState*> events;
};

// Lives on: threads of streams may outlive main.
Driver& driver() {
  static Driver* const the_one = new Driver;
  return *the_one;
}

using Lock = std::unique_lock<std::mutex>;

// With the lock.
bool HasContext(Driver& all) { return all.contexts.contains(std::this_thread::get_id()); }
int CurrentDevice(Driver& all) { return all.contexts.at(std::this_thread::get_id()).back(); }

Context ContextOf(int device) { return reinterpret_cast<Context>(uintptr_t{0x1000} + device); }
int DeviceOf(Context context) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(context) - 0x1000);
}

Result Injected(Driver& all, const std::string& function) {
  const auto found = all.failures.find(function);
  if (found == all.failures.end()) return kSuccess;
  if (found->second.skip-- > 0) return kSuccess;
  const Result error = found->second.error;
  all.failures.erase(found);
  return error;
}

// With the lock.  What loses a graph: a call that its capture forbids.
Result LoseGraph(Driver& all, Result error) {
  ++all.counts.violations;
  return error;
}

// With the lock.  A thread that has not said otherwise may make no call that could wait for the
// device while any thread captures.
bool MayWait(Driver& all) {
  if (all.capture_status == kCaptureStatusNone) return true;
  const auto mode = all.capture_modes.find(std::this_thread::get_id());
  return mode != all.capture_modes.end() && mode->second == kCaptureModeRelaxed;
}

// What every function of the driver begins with.
Result Enter(Driver& all, const char* function, bool needs_context = true) {
  ++all.calls[function];
  if (all.process != ::getpid()) return kNotInitialized;
  if (const Result error = Injected(all, function); error != kSuccess) return error;
  if (all.broken != kSuccess) return all.broken;
  return needs_context && !HasContext(all) ? kInvalidContext : kSuccess;
}

#define RABIT_ENTER(...)                                                                           \
  Driver& all = driver();                                                                          \
  Lock lock(all.mutex);                                                                            \
  if (const Result entered = Enter(all, __func__ __VA_OPT__(, ) __VA_ARGS__); entered != kSuccess) \
  return entered

#define RABIT_REFUSE_IN_CAPTURE() \
  if (!MayWait(all)) return LoseGraph(all, kCaptureUnsupported)

// With the lock.
void Delete(Driver& all, StreamState* stream) {
  --all.counts.streams;
  all.streams.erase(stream);
  delete stream;
}

// The thread of a stream, which ends with its work: tests that fork must find no idle ones.
void Work(StreamState* stream) {
  Driver& all = driver();
  Lock lock(all.mutex);
  while (!stream->queue.empty()) {
    const std::function<void()> work = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->is_working = true;
    const uint32_t delay_us =
        all.delay_us_max == 0 ? 0 : static_cast<uint32_t>(stream->random()) % all.delay_us_max;
    lock.unlock();
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    work();
    lock.lock();
    stream->is_working = false;
    all.changed.notify_all();
  }
  stream->has_thread = false;
  if (stream->is_closed) Delete(all, stream);
}

StreamState* NewStream(Driver& all, int device) {
  auto* const stream = new StreamState;
  stream->device = device;
  stream->random.seed(static_cast<uint32_t>(all.seed++));
  ++all.counts.streams;
  all.streams.insert(stream);
  return stream;
}

// The default stream has three names: of the device, of those who mean that in any case, and of
// each thread.
bool IsDefault(Stream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

StreamState* Find(Driver& all, int device, Stream stream) {
  if (!IsDefault(stream)) return reinterpret_cast<StreamState*>(stream);
  StreamState*& found = all.default_streams[device];
  if (found == nullptr) {
    found = NewStream(all, device);
    --all.counts.streams;  // nobody has made it
  }
  return found;
}

StreamState* Find(Driver& all, Stream stream) { return Find(all, CurrentDevice(all), stream); }

// With the lock.  Whether a call may put something on the stream.
Result CheckStream(Driver& all, Stream stream) {
  if (IsDefault(stream)) {  // it captures, if any does
    return all.capture_status == kCaptureStatusNone ? kSuccess : LoseGraph(all, kCaptureIsolation);
  }
  auto* const found = reinterpret_cast<StreamState*>(stream);
  return all.streams.contains(found) && !found->is_closed ? kSuccess : kInvalidHandle;
}

// With the lock.
Result CheckEvent(Driver& all, Event event) {
  auto* const found = reinterpret_cast<EventState*>(event);
  return all.events.contains(found) && found->is_owned ? kSuccess : kInvalidHandle;
}

void Put(Driver& all, StreamState* stream, std::function<void()> work) {
  stream->queue.push_back(std::move(work));
  if (stream->has_thread) return;
  stream->has_thread = true;
  std::thread(Work, stream).detach();
}

// With the lock.
void Unreference(EventState* event) {
  if (--event->references > 0) return;
  driver().events.erase(event);
  delete event;
}

bool IsPinned(Driver& all, const void* memory, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  auto found = all.pinned.upper_bound(at);
  if (found == all.pinned.begin()) return false;
  --found;
  return at + bytes <= found->first + found->second;
}

// With the lock.  Whoever frees memory waits for all that the device was told.
void AwaitDevice(Driver& all, Lock& lock, int device) {
  all.changed.wait(lock, [&] {
    return std::all_of(all.streams.begin(), all.streams.end(), [&](const StreamState* stream) {
      return stream->device != device || (stream->queue.empty() && !stream->is_working);
    });
  });
}

std::byte* InsideOf(Driver& all, Pointer memory, size_t bytes, int device) {
  auto found = all.memory.upper_bound(memory);
  if (found == all.memory.begin()) return nullptr;
  --found;
  const size_t offset = memory - found->first;
  if (offset + bytes > found->second.bytes) return nullptr;
  if (device >= 0 && found->second.device != device) return nullptr;
  return found->second.inside + offset;
}

Result Copy(Driver& all, Stream stream, void* host, Pointer memory, size_t bytes, bool is_to_host) {
  if (const Result known = CheckStream(all, stream); known != kSuccess) return known;
  StreamState* const on = Find(all, stream);
  if (!IsPinned(all, host, bytes)) return kInvalidValue;
  if (InsideOf(all, memory, bytes, on->device) == nullptr) return kInvalidValue;
  Put(all, on, [&all, host, memory, bytes, is_to_host] {
    std::byte* inside = nullptr;
    {
      Lock lock(all.mutex);
      all.changed.wait(lock, [&] { return is_to_host || !all.holds_copies; });
      if (const Result error = Injected(all, "copy"); error != kSuccess) all.broken = error;
      if (all.broken != kSuccess) return;
      inside = InsideOf(all, memory, bytes, -1);
      if (inside == nullptr || !IsPinned(all, host, bytes)) {
        ++all.counts.violations;
        return;
      }
      ++all.counts.copies;
    }
    std::memcpy(is_to_host ? host : inside, is_to_host ? inside : host, bytes);
  });
  return kSuccess;
}

}  // namespace

#define RABIT_EXPORT extern "C" __attribute__((visibility("default")))

RABIT_EXPORT Pointer rabit_emulated_allocate(int32_t device, size_t bytes);
RABIT_EXPORT void rabit_emulated_free(Pointer memory);

// A child of a process that has started it has no driver.
RABIT_EXPORT Result cuInit(uint32_t) {
  {
    Lock lock(driver().mutex);
    if (driver().process == 0) driver().process = ::getpid();
  }
  RABIT_ENTER(false);
  return all.devices == 0 ? kNoDevice : kSuccess;
}
RABIT_EXPORT Result cuDriverGetVersion(int32_t* version) {
  RABIT_ENTER(false);
  *version = kVersion;
  return kSuccess;
}
RABIT_EXPORT Result cuGetErrorName(Result error, const char** name) {
  Driver& all = driver();
  Lock lock(all.mutex);
  ++all.calls[__func__];
  *name = error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_EMULATED";
  return kSuccess;
}
RABIT_EXPORT Result cuGetErrorString(Result error, const char** text) {
  Driver& all = driver();
  Lock lock(all.mutex);
  ++all.calls[__func__];
  *text = error == kOutOfMemory ? "out of memory" : "an emulated failure";
  return kSuccess;
}
RABIT_EXPORT Result cuDeviceGetCount(int32_t* count) {
  RABIT_ENTER(false);
  *count = all.devices;
  return kSuccess;
}
RABIT_EXPORT Result cuDeviceGet(Device* device, int32_t index) {
  RABIT_ENTER(false);
  if (index < 0 || index >= all.devices) return kInvalidDevice;
  *device = index;
  return kSuccess;
}
RABIT_EXPORT Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  RABIT_ENTER(false);
  ++all.counts.contexts;
  *context = ContextOf(device);
  return kSuccess;
}
RABIT_EXPORT Result cuDevicePrimaryCtxRelease_v2(Device) {
  RABIT_ENTER(false);
  --all.counts.contexts;
  return kSuccess;
}
RABIT_EXPORT Result cuCtxPushCurrent_v2(Context context) {
  RABIT_ENTER(false);
  const int device = DeviceOf(context);
  if (device < 0 || device >= kDevicesMax) return kInvalidContext;
  all.contexts[std::this_thread::get_id()].push_back(device);
  return kSuccess;
}
RABIT_EXPORT Result cuCtxPopCurrent_v2(Context* context) {
  Driver& all = driver();
  Lock lock(all.mutex);
  ++all.calls[__func__];
  if (!HasContext(all)) {
    ++all.counts.violations;
    return kInvalidContext;
  }
  *context = ContextOf(CurrentDevice(all));
  std::vector<int>& mine = all.contexts[std::this_thread::get_id()];
  mine.pop_back();
  if (mine.empty()) all.contexts.erase(std::this_thread::get_id());
  return kSuccess;
}
RABIT_EXPORT Result cuStreamCreate(Stream* stream, uint32_t) {
  RABIT_ENTER();
  *stream = reinterpret_cast<Stream>(NewStream(all, CurrentDevice(all)));
  return kSuccess;
}
RABIT_EXPORT Result cuStreamDestroy_v2(Stream stream) {
  RABIT_ENTER();
  if (IsDefault(stream) || CheckStream(all, stream) != kSuccess) return kInvalidHandle;
  auto* const closed = reinterpret_cast<StreamState*>(stream);
  closed->is_closed = true;  // what it has, it does
  if (!closed->has_thread) Delete(all, closed);
  return kSuccess;
}
RABIT_EXPORT Result cuStreamWaitEvent(Stream stream, Event event, uint32_t) {
  RABIT_ENTER();
  if (const Result known = CheckStream(all, stream); known != kSuccess) return known;
  if (const Result known = CheckEvent(all, event); known != kSuccess) return known;
  auto* const awaited = reinterpret_cast<EventState*>(event);
  ++awaited->references;
  Put(all, Find(all, stream), [&all, awaited, recorded = awaited->recorded] {
    Lock lock(all.mutex);
    all.changed.wait(lock, [&] { return awaited->reached >= recorded || all.broken != kSuccess; });
    Unreference(awaited);
  });
  return kSuccess;
}
RABIT_EXPORT Result cuStreamIsCapturing(Stream, int32_t* status) {
  RABIT_ENTER();
  *status = all.capture_status;
  return kSuccess;
}
RABIT_EXPORT Result cuThreadExchangeStreamCaptureMode(int32_t* mode) {
  RABIT_ENTER();
  const std::thread::id me = std::this_thread::get_id();
  const int32_t before = all.capture_modes[me];
  all.capture_modes[me] = *mode;
  if (*mode == 0) all.capture_modes.erase(me);
  *mode = before;
  return kSuccess;
}
RABIT_EXPORT Result cuEventCreate(Event* event, uint32_t) {
  RABIT_ENTER();
  ++all.counts.events;
  auto* const made = new EventState;
  made->device = CurrentDevice(all);
  all.events.insert(made);
  *event = reinterpret_cast<Event>(made);
  return kSuccess;
}
RABIT_EXPORT Result cuEventDestroy_v2(Event event) {
  RABIT_ENTER();
  if (const Result known = CheckEvent(all, event); known != kSuccess) return known;
  --all.counts.events;
  reinterpret_cast<EventState*>(event)->is_owned = false;
  Unreference(reinterpret_cast<EventState*>(event));
  return kSuccess;
}
RABIT_EXPORT Result cuEventRecord(Event event, Stream stream) {
  RABIT_ENTER();
  if (const Result known = CheckStream(all, stream); known != kSuccess) return known;
  if (const Result known = CheckEvent(all, event); known != kSuccess) return known;
  auto* const recorded = reinterpret_cast<EventState*>(event);
  if (recorded->device != Find(all, stream)->device) return kInvalidHandle;
  ++recorded->references;
  Put(all, Find(all, stream), [&all, recorded, number = ++recorded->recorded] {
    Lock lock(all.mutex);
    recorded->reached = std::max(recorded->reached, number);
    Unreference(recorded);
    all.changed.notify_all();
  });
  return kSuccess;
}
RABIT_EXPORT Result cuEventQuery(Event event) {
  RABIT_ENTER();
  RABIT_REFUSE_IN_CAPTURE();
  if (const Result known = CheckEvent(all, event); known != kSuccess) return known;
  const auto* const asked = reinterpret_cast<EventState*>(event);
  return asked->reached >= asked->recorded ? kSuccess : kNotReady;
}
RABIT_EXPORT Result cuMemHostAlloc(void** memory, size_t bytes, uint32_t) {
  RABIT_ENTER();
  RABIT_REFUSE_IN_CAPTURE();
  if (bytes == 0) return kInvalidValue;
  *memory = ::operator new(bytes);
  all.pinned[reinterpret_cast<uintptr_t>(*memory)] = bytes;
  ++all.counts.pinned;
  return kSuccess;
}
RABIT_EXPORT Result cuMemFreeHost(void* memory) {
  RABIT_ENTER();
  RABIT_REFUSE_IN_CAPTURE();
  if (!all.pinned.contains(reinterpret_cast<uintptr_t>(memory))) return kInvalidValue;
  AwaitDevice(all, lock, CurrentDevice(all));
  all.pinned.erase(reinterpret_cast<uintptr_t>(memory));
  --all.counts.pinned;
  ::operator delete(memory);
  return kSuccess;
}
RABIT_EXPORT Result cuMemAlloc_v2(Pointer* memory, size_t bytes) {
  RABIT_ENTER();
  RABIT_REFUSE_IN_CAPTURE();
  if (bytes == 0) return kInvalidValue;
  const int device = CurrentDevice(all);
  lock.unlock();
  *memory = rabit_emulated_allocate(device, bytes);
  lock.lock();
  ++all.counts.memory;
  return *memory == 0 ? kOutOfMemory : kSuccess;
}
RABIT_EXPORT Result cuMemFree_v2(Pointer memory) {
  RABIT_ENTER();
  RABIT_REFUSE_IN_CAPTURE();
  if (!all.memory.contains(memory)) return kInvalidValue;
  AwaitDevice(all, lock, all.memory.at(memory).device);
  --all.counts.memory;
  lock.unlock();
  rabit_emulated_free(memory);
  return kSuccess;
}
RABIT_EXPORT Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, Stream stream) {
  RABIT_ENTER();
  if (const Result known = CheckStream(all, stream); known != kSuccess) return known;
  StreamState* const on = Find(all, stream);
  const auto reach = [&all, bytes, device = on->device](Pointer memory) {
    return InsideOf(all, memory, bytes, device);
  };
  if (reach(to) == nullptr || reach(from) == nullptr) return kInvalidValue;
  Put(all, on, [&all, to, from, bytes, reach] {
    std::byte* target = nullptr;
    const std::byte* source = nullptr;
    {
      Lock held(all.mutex);
      if (const Result error = Injected(all, "copy"); error != kSuccess) all.broken = error;
      if (all.broken != kSuccess) return;
      target = reach(to);
      source = reach(from);
      if (target == nullptr || source == nullptr) {
        ++all.counts.violations;
        return;
      }
      ++all.counts.copies;
    }
    std::memmove(target, source, bytes);
  });
  return kSuccess;
}
RABIT_EXPORT Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, Stream stream) {
  RABIT_ENTER();
  all.copied_from[from] = ++all.copied;
  return Copy(all, stream, to, from, bytes, true);
}
RABIT_EXPORT Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes,
                                         Stream stream) {
  RABIT_ENTER();
  return Copy(all, stream, const_cast<void*>(from), to, bytes, false);
}

RABIT_EXPORT void rabit_emulated_delays(uint64_t seed, uint32_t delay_us_max) {
  Lock lock(driver().mutex);
  driver().seed = seed;
  driver().delay_us_max = delay_us_max;
}
RABIT_EXPORT void rabit_emulated_fail(const char* function, uint64_t skip, Result error) {
  Lock lock(driver().mutex);
  if (error == kSuccess) {
    driver().failures.erase(function);
    driver().broken = kSuccess;
  } else {
    driver().failures[function] = {skip, error};
  }
}
RABIT_EXPORT void rabit_emulated_counts(Counts* counts) {
  Lock lock(driver().mutex);
  *counts = driver().counts;
}
RABIT_EXPORT uint64_t rabit_emulated_calls(const char* function) {
  Lock lock(driver().mutex);
  return driver().calls[function];
}
RABIT_EXPORT uint64_t rabit_emulated_copy_of(Pointer memory) {
  Lock lock(driver().mutex);
  const auto found = driver().copied_from.find(memory);
  return found == driver().copied_from.end() ? 0 : found->second;
}
RABIT_EXPORT void rabit_emulated_hold(int32_t is_held) {
  Lock lock(driver().mutex);
  driver().holds_copies = is_held != 0;
  driver().changed.notify_all();
}
RABIT_EXPORT void rabit_emulated_capture(int32_t status) {
  Lock lock(driver().mutex);
  driver().capture_status = status;
}
RABIT_EXPORT void rabit_emulated_devices(int32_t count) {
  Lock lock(driver().mutex);
  driver().devices = count;
}
RABIT_EXPORT Pointer rabit_emulated_allocate(int32_t device, size_t bytes) {
  const int file = ::memfd_create("rabit-emulated-device", MFD_CLOEXEC);
  if (file < 0) return 0;
  void* outside = MAP_FAILED;
  void* inside = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    outside = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
    inside = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  ::close(file);
  if (outside == MAP_FAILED || inside == MAP_FAILED) return 0;
  Lock lock(driver().mutex);
  const auto address = reinterpret_cast<uintptr_t>(outside);
  driver().memory[address] = {static_cast<std::byte*>(inside), bytes, device};
  return address;
}
RABIT_EXPORT void rabit_emulated_free(Pointer memory) {
  Lock lock(driver().mutex);
  const auto found = driver().memory.find(memory);
  if (found == driver().memory.end()) return;
  ::munmap(reinterpret_cast<void*>(memory), found->second.bytes);
  ::munmap(found->second.inside, found->second.bytes);
  driver().memory.erase(found);
}
RABIT_EXPORT void* rabit_emulated_inside(Pointer memory) {
  Lock lock(driver().mutex);
  return InsideOf(driver(), memory, 0, -1);
}
RABIT_EXPORT void* rabit_emulated_reach(Pointer memory, size_t bytes, int32_t device) {
  Lock lock(driver().mutex);
  return InsideOf(driver(), memory, bytes, device);
}
RABIT_EXPORT int32_t rabit_emulated_current_device() {
  Lock lock(driver().mutex);
  return HasContext(driver()) ? CurrentDevice(driver()) : -1;
}
RABIT_EXPORT void rabit_emulated_launch(int32_t device, Stream stream, void (*kernel)(void*),
                                        void* argument) {
  Lock lock(driver().mutex);
  Put(driver(), Find(driver(), device, stream), [kernel, argument] { kernel(argument); });
}
RABIT_EXPORT void rabit_emulated_finish(int32_t device, Stream stream) {
  Lock lock(driver().mutex);
  StreamState* const awaited = Find(driver(), device, stream);
  driver().changed.wait(lock, [&] { return awaited->queue.empty() && !awaited->is_working; });
}
