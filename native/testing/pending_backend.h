// PendingBackend: a backend that blocks, made into one that does not.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/mutex.h"
#include "base/wake_signal.h"

namespace rabit::testing {

// Every call returns at once; a thread for each lane makes the calls of `inner`, in their order.
class PendingBackend final : public Backend {
 public:
  // Called before each call of `inner`, on the thread that makes it.
  using BeforeEach = std::function<void()>;

  explicit PendingBackend(std::unique_ptr<Backend> inner, BeforeEach before_each = nullptr)
      : inner_(std::move(inner)), before_each_(std::move(before_each)) {}
  ~PendingBackend() override {
    for (auto& [number, lane] : lanes_) lane->Close();
  }

  std::string_view name() const override { return inner_->name(); }
  bool fails_apart() const override { return inner_->fails_apart(); }
  Status AddGroup(const Group& group) override { return inner_->AddGroup(group); }
  void Abort(Status why) override { inner_->Abort(std::move(why)); }

  // Waits until so many calls have been made; false at the deadline.
  bool WaitCalls(int64_t count, Deadline deadline) {
    return calls_changed_.Wait([&] { return calls_.load() >= count; }, deadline);
  }

  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    return Put(lane, [this, lane, in_out, op] { return inner_->Allreduce(lane, in_out, op); });
  }
  Operation Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                   int root) override {
    return Put(lane,
               [this, lane, in_out, op, root] { return inner_->Reduce(lane, in_out, op, root); });
  }
  Operation Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                      std::span<const int64_t> part_bytes) override {
    return Put(lane, [this, lane, mine, all, parts = Kept(part_bytes)] {
      return inner_->Allgather(lane, mine, all, parts);
    });
  }
  Operation ReduceScatter(const LaneContext& lane, const TensorView& in, const TensorView& out,
                          std::span<const int64_t> part_counts, ReduceOp op) override {
    return Put(lane, [this, lane, in, out, parts = Kept(part_counts), op] {
      return inner_->ReduceScatter(lane, in, out, parts, op);
    });
  }
  Operation Broadcast(const LaneContext& lane, Bytes buffer, int root) override {
    return Put(lane, [this, lane, buffer, root] { return inner_->Broadcast(lane, buffer, root); });
  }
  Operation Alltoall(const LaneContext& lane, ConstBytes in, std::span<const int64_t> send_bytes,
                     Bytes out, std::span<const int64_t> receive_bytes) override {
    return Put(lane,
               [this, lane, in, sent = Kept(send_bytes), out, received = Kept(receive_bytes)] {
                 return inner_->Alltoall(lane, in, sent, out, received);
               });
  }
  Operation Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                   std::span<const int64_t> part_bytes, int root) override {
    return Put(lane, [this, lane, mine, all, parts = Kept(part_bytes), root] {
      return inner_->Gather(lane, mine, all, parts, root);
    });
  }
  Operation Scatter(const LaneContext& lane, ConstBytes all, std::span<const int64_t> part_bytes,
                    Bytes mine, int root) override {
    return Put(lane, [this, lane, all, parts = Kept(part_bytes), mine, root] {
      return inner_->Scatter(lane, all, parts, mine, root);
    });
  }
  Operation Barrier(const LaneContext& lane) override {
    return Put(lane, [this, lane] { return inner_->Barrier(lane); });
  }
  Operation Send(const LaneContext& lane, ConstBytes buffer, int peer) override {
    return Put(lane, [this, lane, buffer, peer] { return inner_->Send(lane, buffer, peer); });
  }
  Operation Recv(const LaneContext& lane, Bytes buffer, int peer) override {
    return Put(lane, [this, lane, buffer, peer] { return inner_->Recv(lane, buffer, peer); });
  }

 private:
  struct Call {
    std::function<Operation()> make;
    Deadline deadline;
    WakeSignal over{std::chrono::microseconds(0)};
    std::atomic<bool> is_over{false};
    Status status;  // before is_over
  };

  class PendingCall final : public PendingOperation {
   public:
    explicit PendingCall(std::shared_ptr<Call> call) : call_(std::move(call)) {}
    Status Wait(Deadline deadline) override {
      if (!call_->over.Wait([this] { return call_->is_over.load(); }, deadline)) {
        return TimedOut("a pending call");
      }
      return call_->status;
    }
    void Cancel() override {
      (void)call_->over.Wait([this] { return call_->is_over.load(); },
                             After(std::chrono::seconds(60)));
    }

   private:
    const std::shared_ptr<Call> call_;
  };

  // The calls of one lane, and the thread that makes them.
  class Queue {
   public:
    explicit Queue(std::function<void()> before_each)
        : before_each_(std::move(before_each)), thread_([this] { Run(); }) {}

    void Put(std::shared_ptr<Call> call) {
      {
        MutexLock lock(mutex_);
        calls_.push_back(std::move(call));
      }
      changed_.Notify();
    }
    void Close() {
      Put(nullptr);
      thread_.join();
    }

   private:
    bool HasCalls() {
      MutexLock lock(mutex_);
      return !calls_.empty();
    }
    void Run() {
      for (;;) {
        if (!changed_.Wait([this] { return HasCalls(); }, After(std::chrono::hours(1)))) continue;
        std::shared_ptr<Call> call;
        {
          MutexLock lock(mutex_);
          call = std::move(calls_.front());
          calls_.pop_front();
        }
        if (call == nullptr) return;
        if (before_each_) before_each_();
        call->status = call->make().Wait(call->deadline);
        call->is_over.store(true);
        call->over.Notify();
      }
    }

    const std::function<void()> before_each_;
    WakeSignal changed_{std::chrono::microseconds(0)};
    Mutex mutex_;
    std::deque<std::shared_ptr<Call>> calls_ RABIT_GUARDED_BY(mutex_);
    std::thread thread_;
  };

  static std::vector<int64_t> Kept(std::span<const int64_t> parts) {
    return {parts.begin(), parts.end()};
  }

  Operation Put(const LaneContext& lane, std::function<Operation()> make) {
    auto call = std::make_shared<Call>();
    call->make = std::move(make);
    call->deadline = lane.deadline;
    MutexLock lock(mutex_);
    std::unique_ptr<Queue>& queue = lanes_[lane.lane];
    if (queue == nullptr) {
      queue = std::make_unique<Queue>(before_each_);
    }
    ++calls_;
    calls_changed_.Notify();
    queue->Put(call);
    return Operation(std::make_unique<PendingCall>(std::move(call)));
  }

  const std::unique_ptr<Backend> inner_;
  const BeforeEach before_each_;
  std::atomic<int64_t> calls_{0};
  WakeSignal calls_changed_{std::chrono::microseconds(0)};
  Mutex mutex_;
  std::map<int, std::unique_ptr<Queue>> lanes_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit::testing
