// Caller: the code that uses the engine of one rank, as a program says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/command_queue.h"
#include "engine/engine_core.h"
#include "engine/group_table.h"
#include "testing/simulator/dice.h"
#include "testing/simulator/program.h"
#include "testing/simulator/virtual_time.h"

namespace rabit::testing {

// What a caller asks of its rank, and tells it.
class CallerPort {
 public:
  virtual ~CallerPort() = default;
  virtual void Submit(EngineCore::Requests batch) = 0;
  virtual void Tell(CommandQueue::Command command) = 0;
  virtual void Stop() = 0;
  virtual void Violate(const std::string& what) = 0;
};

// Submits what it may, in an order of its own and some at a time, and checks what comes back: every
// request ends once, in the way that the program foresees, and after all of it has been exchanged.
// One thread.
class Caller {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    int pace_us_max = 200;  // from one batch to the next
    int batch_max = 4;
    int open_max = 1 << 20;  // requests at a time
  };

  // All outlive it.
  Caller(const Options& options, const Program& program, VirtualTime& time, Dice& dice,
         GroupTable& groups, CallerPort& port);

  void Begin() { SubmitLater(); }
  // Leaves undone what it has not submitted yet, though its engine runs.
  void FallSilent() { is_silent_ = true; }
  // Its engine has ended with `why`.
  void End(bool has_failed) { has_ended_ = true, has_failed_ = has_failed; }

  // A lane has exchanged some elements of `pending`.
  void OnExchanged(const PendingRequest& pending, int64_t count);
  void OnFinished(const PendingRequest& pending);

  int open_count() const { return open_count_; }
  // A join may wait for as long as others have work.
  bool waits_for_tensor() const { return open_count_ > (has_joined_ ? 1 : 0); }
  uint64_t submitted() const { return submitted_; }
  std::string Describe() const;  // what is not through

 private:
  struct State {  // of an operation; small, because there may be millions
    uint16_t round = 0;
    bool is_open = false;
    int32_t parts = 0;  // of the open request
    int32_t exchanged = 0;
  };

  void SubmitLater();
  void SubmitSome();
  std::shared_ptr<PendingRequest> Open(int index);
  void Refuse(int index);
  void EndRound(int index);
  void AddGroup(int definition);
  void UseGroup(int slot);
  void RemoveGroupIfOver(int slot);
  void MakeReady(int slot);  // the operations of a group
  void JoinOrStop();
  bool LeavesOut(const Operation& operation, int round) const;
  Signature SignatureOf(const Operation& operation, bool is_odd) const;
  void Check(const Operation& operation, const State& state, const PendingRequest& pending);
  void CheckCarried(const Operation& operation, const State& state, const PendingRequest& pending);
  std::vector<float> CarriedResult(const Operation& operation, const State& state,
                                   int64_t count) const;
  static int64_t RowsOf(const Operation& operation, int rank);  // of an allgather
  const Operation& at(int index) const { return program_.operations[static_cast<size_t>(index)]; }

  const Options options_;
  const Program& program_;
  VirtualTime& time_;
  Dice& dice_;
  GroupTable& groups_;
  CallerPort& port_;
  std::vector<State> states_;  // by operation
  std::vector<int> ready_;     // operations that may be submitted
  std::vector<GroupId> group_ids_;
  std::vector<float> input_;
  NamedTensor named_;
  uint64_t submitted_ = 0;
  int left_ = 0;  // operations that are not through
  int open_count_ = 0;
  bool is_waiting_ = false;  // for the time of its next batch
  bool has_joined_ = false;
  bool is_silent_ = false;
  bool has_ended_ = false;
  bool has_failed_ = false;
};

}  // namespace rabit::testing
