// HandleTable: handle -> request.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "engine/overlap_clock.h"
#include "engine/pending_request.h"
#include "engine/record.h"

namespace rabit {

// Thread-safe.
class HandleTable {
 public:
  HandleTable(int rank, size_t capacity, std::chrono::microseconds spin, OverlapClock& clock,
              Record& record);

  // Given out in order, and never again.
  Handle NewHandle() { return {next_handle_.fetch_add(1, std::memory_order_relaxed)}; }

  // All or none: fails if a name is open in its group already, or the table is full.
  Result<std::vector<std::shared_ptr<PendingRequest>>> Open(std::span<Request> requests,
                                                            int64_t now_ns);
  // Takes back what Open gave, as if it had not been called; nobody else knows the handles yet.
  void Forget(std::span<const std::shared_ptr<PendingRequest>> requests);

  // One hold is launched, and its result is there when `event` is over.  With the last one the name
  // is free again, then those wake who wait for that.
  void Launch(const std::shared_ptr<PendingRequest>& request, const DeviceEvent& event);
  // Drops one hold, which `event` stood for if it is launched; the last one finishes the request,
  // and the waiters wake.
  void Drop(const std::shared_ptr<PendingRequest>& request, const DeviceEvent* event = nullptr);
  // The same, but the completion is left to the caller.  True: there is one, and it is due.
  bool DropQuietly(const std::shared_ptr<PendingRequest>& request,
                   const DeviceEvent* event = nullptr);
  static void Notify(const PendingRequest& request);

  // Waits.  kTimedOut leaves the handle open.
  Status Wait(Handle handle, Deadline deadline);
  // See Engine::WaitOnStream.
  Status WaitOnStream(Handle handle, void* stream, Deadline deadline);
  // See Engine::WaitAny.
  Result<int> WaitAny(std::span<const Handle> handles, uint64_t* news, Deadline deadline);
  Result<bool> IsDone(Handle handle) const;
  Result<std::shared_ptr<PendingRequest>> Find(Handle handle) const;
  Result<HandleOutput> Output(Handle handle) const;
  void Release(Handle handle);

  size_t open_count() const;
  bool IsOpen(const Request& request) const;  // its name is in flight

 private:
  static constexpr size_t kShards = 16;
  static constexpr size_t kClosedNamesMin = 1 << 14;
  struct Shard {
    mutable Mutex mutex;
    std::unordered_map<uint64_t, std::shared_ptr<PendingRequest>> requests RABIT_GUARDED_BY(mutex);
  };

  Shard& ShardOf(Handle handle) { return shards_[handle.value % kShards]; }
  const Shard& ShardOf(Handle handle) const { return shards_[handle.value % kShards]; }

  const int rank_;
  const size_t capacity_;
  const std::chrono::microseconds spin_;
  std::atomic<uint64_t> next_handle_{1};
  std::array<Shard, kShards> shards_;
  OverlapClock& clock_;
  Record& record_;
  std::atomic<uint64_t> finished_{0};  // operations, ever
  WakeSignal any_finished_;

  // All requests' names or none.
  Result<std::vector<NamedTensor*>> OpenNames(std::span<const Request> requests);
  void CloseName(const PendingRequest& request);
  // Blocks until `wait(deadline)` of the request says yes.
  Status Await(PendingRequest& request, bool (PendingRequest::*wait)(Deadline), Deadline deadline);

  // Names stay here when they are closed, because the next step opens them again; numbered ones
  // do not.
  mutable Mutex names_mutex_;
  std::unordered_map<std::string, NamedTensor> names_ RABIT_GUARDED_BY(names_mutex_);
  size_t open_names_ RABIT_GUARDED_BY(names_mutex_) = 0;
  size_t names_max_ RABIT_GUARDED_BY(names_mutex_) = kClosedNamesMin;
};

// A name inside its group, as one key.
std::string NameKey(GroupId group, const std::string& name);
// Messages also differ by partner and direction: a rank may send and receive under one name.
std::string SendKey(GroupId group, const std::string& name, int receiver);
std::string RecvKey(GroupId group, const std::string& name, int sender);
// Which of the three a request goes by.
std::string KeyOf(const Request& request);

}  // namespace rabit
