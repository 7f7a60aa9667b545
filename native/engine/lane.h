// Lane: runs buckets one after the other, on a thread of its own unless a caller does it.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/wake_signal.h"
#include "engine/bucket_job.h"
#include "engine/engine_state.h"

namespace rabit {

// Buckets run in the order in which they were pushed, which is the order of their ids: all ranks
// therefore run the buckets of a lane in one order, and none waits for another in a circle.  A
// bucket whose backend does not block is left to it while the next ones are begun.  The thread
// starts with the first bucket: those of a class of lanes that a job does not use never do.
class Lane {
 public:
  // `lane_class`: by this the thread is named.
  Lane(std::shared_ptr<EngineState> state, const std::string& lane_class);
  ~Lane();

  // Engine thread only (or who does its work; see EngineLoop::Drive).
  void Push(BucketJob job);
  // The same; if the lane is idle, keeps it so until Release: the caller is to run the next job
  // itself.  Jobs that are pushed meanwhile run afterwards.
  bool TryClaim();
  // The same, of a lane that is claimed: whether one more job could run before what was pushed.
  bool CanExtendClaim() const;

  // Whoever has claimed the lane.  Runs `job` on this thread as the lane would.
  void RunClaimed(BucketJob job);
  // `job`, which was to be run under the claim, comes before what was pushed meanwhile.
  void GiveBack(BucketJob job);
  // Ends the claim.
  void Release();

  // No further Push; the thread ends when it has run what it has.
  void Close();
  // False at the deadline: the thread is then left to itself.
  bool Join(Deadline deadline);

 private:
  struct Inbox;  // shared with the thread, which may outlive the lane

  struct Flight;  // a job that has begun

  void StartThread();  // unless it runs; any thread
  static void Loop(EngineState& state, Inbox& inbox);
  static void RunAll(EngineState& state, Inbox& inbox);

  const std::shared_ptr<EngineState> state_;
  std::shared_ptr<Inbox> inbox_;
  std::atomic<bool> has_thread_{false};
  Mutex thread_mutex_;
  std::thread thread_ RABIT_GUARDED_BY(thread_mutex_);
};

}  // namespace rabit
