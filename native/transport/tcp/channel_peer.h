// ChannelPeer: one connection of the TCP channel.
#pragma once

#include <atomic>
#include <deque>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/poller.h"
#include "base/result.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/channel.h"
#include "transport/tcp/channel_frame.h"

namespace rabit {

// What Receive returns next: a message, or why a peer is lost.
struct ChannelEvent {
  ChannelMessage message;
  Status loss;
};

// The engine thread owns everything; SendBeat alone may come from another thread.
class ChannelPeer {
 public:
  enum class State { kOpen, kGone, kLost };

  ChannelPeer(int rank, UniqueFd fd) : rank_(rank), fd_(std::move(fd)) {}

  // Exchanges introductions, before the poller knows the connection; blocks until the deadline.
  Status SendIntroduction(Deadline deadline);
  Status ReadIntroduction(Deadline deadline);
  Status Watch(Poller& poller);

  int rank() const { return rank_; }
  State state() const { return state_; }
  std::string ToString() const;  // "rank 3 (host a, pid 17)"
  Deadline last_heard() const { return last_heard_; }
  void set_last_heard(Deadline when) { last_heard_ = when; }

  // Sends now what the kernel takes and queues the rest.  A connection found dead is read to its
  // end first, into `events`, to tell a goodbye from a death.
  Status Send(Poller& poller, ConstBytes message, std::deque<ChannelEvent>& events);
  // Reads once, without waiting, and appends what is complete.  False if no bytes came.
  bool Read(Poller& poller, std::deque<ChannelEvent>& events);
  // Sends what is queued, as far as the kernel takes it.
  void Flush(Poller& poller);
  bool has_output() const { return has_output_.load(std::memory_order_relaxed); }
  // Gives the peer up; a second reason is ignored.
  void Lose(Poller& poller, const std::string& why, std::deque<ChannelEvent>& events);

  // Any thread.  A beat, unless something was sent since the last call or is queued.
  void SendBeat(Poller& poller);

  // Sends what is queued and a goodbye, within the deadline, and closes.
  void Close(Poller& poller, Deadline deadline);

 private:
  // Takes the complete frames out of the input.
  void Parse(Poller& poller, std::deque<ChannelEvent>& events);
  Status Handle(const ChannelFrameInfo& info, ConstBytes payload, Poller& poller,
                std::deque<ChannelEvent>& events);
  Status SendFrame(ChannelFrameKind kind, ConstBytes payload, Poller& poller)
      RABIT_REQUIRES(mutex_);
  // 0, or the error number of a dead connection.
  int WriteQueue() RABIT_REQUIRES(mutex_);
  void WatchOutput(Poller& poller) RABIT_REQUIRES(mutex_);
  void Disconnect(Poller& poller, State state);

  const int rank_;
  State state_ = State::kOpen;
  ChannelIntroduction introduction_;
  Deadline last_heard_{};
  uint64_t next_received_ = 0;
  std::vector<std::byte> input_;
  size_t input_begin_ = 0;
  size_t input_end_ = 0;

  Mutex mutex_;
  UniqueFd fd_;  // written and closed under the mutex; the engine thread reads it freely
  uint64_t next_sent_ RABIT_GUARDED_BY(mutex_) = 0;
  std::deque<std::vector<std::byte>> output_ RABIT_GUARDED_BY(mutex_);
  size_t output_sent_ RABIT_GUARDED_BY(mutex_) = 0;   // of the first
  size_t output_bytes_ RABIT_GUARDED_BY(mutex_) = 0;  // of all
  bool is_output_watched_ RABIT_GUARDED_BY(mutex_) = false;
  bool has_sent_since_beat_ RABIT_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_output_{false};
};

}  // namespace rabit
