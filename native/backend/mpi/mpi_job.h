// MpiJob: this engine's communicators, and how it waits for MPI.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/mpi/mpi_library.h"
#include "base/bytes.h"
#include "base/group.h"
#include "base/result.h"
#include "base/wake_signal.h"

namespace rabit {

struct MpiJobOptions {
  int rank = 0;  // must be the rank and size that MPI has given this process
  int size = 1;
  int lanes = 1;
  int spin_us = 0;    // that a wait may use a core for itself
  Deadline deadline;  // until which the other ranks must have come
};

// Shared by the transport and the backend of one engine.  Every lane has communicators of its own,
// private to this engine: lanes cannot take each other's messages, nor the program's.
//
// MPI can neither be told that a peer is dead nor made to give up a collective.  Hence only
// functions that return at once are called, and a wait that ends early, by Abort or a deadline,
// leaves its request behind: MPI may still use the buffers of that request, but only while some
// thread calls MPI, and after a failure this job does not.  Thread-safe.
class MpiJob {
 public:
  // Collective.  Blocks until every rank has called it.
  static Result<std::shared_ptr<MpiJob>> Open(MpiHandles handles, const MpiJobOptions& options);
  ~MpiJob();
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  MpiLibrary& library() { return *library_; }
  const MpiHandles& handles() const { return handles_; }
  const MpiJobOptions& options() const { return options_; }

  // The communicator of a lane with all ranks, for messages.
  MpiHandle MessagesOf(int lane) const { return messages_[static_cast<size_t>(lane)]; }
  // The communicator of a lane for the collectives of a group.
  Result<MpiHandle> CollectivesOf(int lane, const Group& group) const;
  // Collective among the members.  Blocks until they have called it, at most 30 s.
  Status AddGroup(const Group& group);
  size_t communicators() const;
  // Collective.  Whether `mine` is true on every rank.
  Result<bool> IsTrueOnAll(bool mine);

  // Waits until the request is done.  kTimedOut leaves it in flight.
  //
  // One waiting thread polls, for all that wait: on a host with as many ranks as cores two polling
  // lanes of one rank would hold up the very rank that both wait for.
  Status Wait(MpiHandle* request, int64_t* received, std::string_view what, Deadline deadline);
  // Ends a receive that nobody waits for any more.  True: the buffer is free.
  bool CancelReceive(MpiHandle* request);

  void Abort(Status why);
  bool is_aborted() const { return is_aborted_.load(std::memory_order_acquire); }
  Status failure() const;  // OK unless aborted

 private:
  MpiJob(MpiHandles handles, MpiJobOptions options, std::unique_ptr<MpiLibrary> library)
      : handles_(std::move(handles)), options_(options), library_(std::move(library)) {}

  Status CheckPlace();
  Result<MpiHandle> Duplicate(MpiHandle comm, Deadline deadline);
  Result<MpiHandle> CreateGroup(const Group& group, int lane);
  Status TimedOutAt(std::string_view what) const;

  using Key = std::pair<GroupId, int>;  // group, lane

  struct Waiter {
    MpiHandle* request;
    int64_t* received;
    Status status;  // guarded by polling_mutex_ until is_done
    std::atomic<bool> is_done{false};
    std::atomic<bool> polls{false};  // it is this thread's turn to poll
    WakeSignal changed{};
  };
  Status Poll(Waiter& mine, std::string_view what, Deadline deadline);
  Status Sleep(Waiter& mine, std::string_view what, Deadline deadline);
  void PollForOthers(const Waiter& mine);
  void Leave(Waiter& mine);

  const MpiHandles handles_;
  const MpiJobOptions options_;
  const std::shared_ptr<MpiLibrary> library_;  // also held by a thread that is left behind
  std::vector<MpiHandle> messages_;            // by lane

  std::mutex polling_mutex_;
  std::vector<Waiter*> waiters_;  // guarded by polling_mutex_
  bool has_poller_ = false;       // guarded by polling_mutex_: one of them polls
  std::atomic<int> waiting_{0};   // their number

  std::atomic<bool> is_aborted_{false};
  WakeSignal aborted_;
  mutable std::mutex mutex_;
  std::map<Key, MpiHandle> collectives_;  // guarded by mutex_
  Status failure_;                        // guarded by mutex_
};

}  // namespace rabit
