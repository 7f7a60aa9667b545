// What the emulated NCCL knows: communicators, whose turn a device is, and what tests have it do.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "testing/emulated_cuda/emulated_cuda.h"
#include "testing/emulated_nccl/emulated_nccl.h"
#include "testing/emulated_nccl/numbers.h"
#include "testing/emulated_nccl/pipes.h"

namespace rabit::emulated_nccl {

using namespace rabit::nccl;  // NOLINT: NCCL's own words

struct Communicator {
  std::string file;
  Board* board = nullptr;
  int rank = 0;
  int size = 1;
  int device = 0;
  int polls_left = 0;  // before it tells that what was begun is done
  int kernels = 0;     // on streams, and not over
  bool has_joined = false;
  bool is_connected = false;  // by a launch before
  Comm handle = nullptr;
  Comm* place = nullptr;  // where the handle is written when it has joined, or is given up before
  bool is_finalizing = false;
  bool is_finalized = false;
  std::vector<std::function<void()>> launches;  // what was begun, and is not on a stream yet
  std::map<RedOp, Operator> operators;
  std::map<RedOp, DataType> operator_types;
  std::string last_error;
  std::atomic<Result> error{kSuccess};
  std::atomic<bool> is_aborted{false};

  ~Communicator() {
    if (board != nullptr) ::munmap(board, sizeof(Board));
  }
};
using Shared = std::shared_ptr<Communicator>;

// A call between ncclGroupStart and ncclGroupEnd, or one alone.
struct Call {
  Shared comm;
  Stream stream = nullptr;
  bool is_message = false;           // sends and receipts of a group are one kernel
  std::function<bool()> exchange{};  // false: it was aborted
  Message message{};
  bool is_receipt = false;
};

struct Injected {
  uint64_t skip = 0;
  Result result = kSuccess;
};

// Whose turn it is on a device.
struct Turns {
  uint64_t next = 0;
  uint64_t current = 0;
  std::set<uint64_t> over;
};

struct Library {
  std::mutex mutex;
  std::condition_variable changed;
  std::minstd_rand random{7};
  int32_t version = 22703;
  Counts counts;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, Injected> failures;
  Injected broken{0, kSuccess};  // a kernel
  std::map<Comm, Shared> comms;
  std::map<int, Turns> turns;
  std::string last_error;
  uint64_t made = 0;  // identities and communicators
};

// Lives on: streams may outlive main.
inline Library& library() {
  static Library* const the_one = new Library;
  return *the_one;
}

struct Group {
  int depth = 0;
  std::vector<Call> calls;
  std::vector<Shared> aborted;
};
inline Group& group() {
  static thread_local Group mine;
  return mine;
}

using Lock = std::unique_lock<std::mutex>;
template <class Function>
Function* OfDriver(const char* name) {
  static void* const loaded = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return loaded == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(loaded, name));
}

inline int CurrentDevice() {
  static auto* const ask =
      OfDriver<emulated_cuda::rabit_emulated_current_device_type>("rabit_emulated_current_device");
  return ask == nullptr ? -1 : ask();
}
inline std::byte* Reach(const void* memory, size_t bytes, int device) {
  static auto* const ask =
      OfDriver<emulated_cuda::rabit_emulated_reach_type>("rabit_emulated_reach");
  return static_cast<std::byte*>(ask(reinterpret_cast<uintptr_t>(memory), bytes, device));
}

// With the lock.
inline Result Tell(Library& all, Result result, std::string why) {
  all.last_error = std::move(why);
  return result;
}
inline Result Violated(Library& all, Result result, std::string why) {
  ++all.counts.violations;
  return Tell(all, result, std::move(why));
}

// What every function begins with.
inline Result Enter(Library& all, const char* function) {
  ++all.calls[function];
  const auto found = all.failures.find(function);
  if (found == all.failures.end() || found->second.skip-- > 0) return kSuccess;
  const Result result = found->second.result;
  all.failures.erase(found);
  return Tell(all, result, std::string(function) + " was told to fail");
}

// With the lock.  The real one does so on a thread of its own, however long ago the call was.
inline void WriteHandle(Library& all, Communicator& comm) {
  Comm* const place = std::exchange(comm.place, nullptr);
  if (place == nullptr) return;
  if (__atomic_load_n(place, __ATOMIC_ACQUIRE) == comm.handle) {
    __atomic_store_n(place, comm.handle, __ATOMIC_RELEASE);
  } else {
    (void)Violated(all, kInternalError, "the place of the handle has gone");
  }
}

// With the lock.
inline void Remove(Library& all, Comm comm) {
  all.counts.operators -= static_cast<int64_t>(all.comms.at(comm)->operators.size());
  all.comms.erase(comm);
  --all.counts.communicators;
}

#define RABIT_ENTER_NCCL()  \
  Library& all = library(); \
  Lock lock(all.mutex);     \
  if (const Result entered = Enter(all, __func__); entered != kSuccess) return entered

inline Result Find(Library& all, Comm comm, Shared& found, bool must_be_ready) {
  const auto at = all.comms.find(comm);
  if (at == all.comms.end()) return Violated(all, kInvalidArgument, "there is no such comm");
  found = at->second;
  if (!must_be_ready) return kSuccess;
  const bool is_ready = found->has_joined && found->polls_left == 0 && found->launches.empty();
  if (!is_ready || found->is_finalizing)
    return Violated(all, kInvalidUsage, "the comm is in progress still");
  if (CurrentDevice() == found->device) return kSuccess;
  return Violated(all, kUnhandledCudaError, "another device is current");
}

}  // namespace rabit::emulated_nccl
