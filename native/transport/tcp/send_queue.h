// SendQueue: the frames of one link that are not acknowledged yet.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transport/tcp/frame.h"
#include "transport/tcp/transfer.h"

namespace rabit {

struct OutFrame {
  FrameHeader header;
  const std::byte* payload = nullptr;  // in `owned` or in the sender's buffer
  std::shared_ptr<const std::byte[]> owned;
  std::shared_ptr<Transfer> message;
  bool is_last = false;                // of its message
  bool finishes_when_written = false;  // a copy: its sender need not wait for the peer
  bool has_crc = false;
  int times_written = 0;
  int times_refused = 0;
};

// Frames are numbered from 0 and kept until acknowledged; the cursor is the next one to write.
// No I/O and no lock of its own: the link's send lock guards it.
class SendQueue {
 public:
  SendQueue(size_t copied_bytes_max, size_t retained_bytes_max)
      : copied_bytes_max_(copied_bytes_max), retained_bytes_max_(retained_bytes_max) {}

  // Cuts this link's part of the message into frames.  Borrows `buffer`, the whole message, until
  // `message` is done or detached.
  void Push(std::shared_ptr<Transfer> message, ConstBytes buffer, uint8_t link);
  // `message` is done when the peer has confirmed everything.
  void PushGoodbye(std::shared_ptr<Transfer> message, uint8_t link);

  // The frame at the cursor, or null.
  OutFrame* Next();
  OutFrame& At(uint64_t sequence) { return frames_[static_cast<size_t>(sequence - first_)]; }
  // The frame at the cursor is with the kernel.  The message that this finishes, or null.
  std::shared_ptr<Transfer> Written();
  void Rewind(uint64_t sequence) { cursor_ = sequence > first_ ? sequence : first_; }

  // Drops every frame before `ack`.  False if that frame does not exist or was never written.
  bool Acknowledge(uint64_t ack, std::vector<std::shared_ptr<Transfer>>& finished);
  // The last frame of the message, which was not asked to be acknowledged, is from now on, when it
  // is written (again).  False: it was, or is acknowledged.
  bool AskFor(const Transfer& message);
  // From now on the queue reads its own copy of what is left of the message.  False: it is done.
  bool Detach(const Transfer& message);
  // Forgets every frame; the transfers that were not done.
  std::vector<std::shared_ptr<Transfer>> Clear();

  uint64_t first() const { return first_; }
  uint64_t cursor() const { return cursor_; }
  uint64_t end() const { return first_ + frames_.size(); }
  bool empty() const { return frames_.empty(); }
  // Copies that wait for their acknowledgement, with what a frame costs besides.
  size_t retained_bytes() const { return retained_bytes_ + frames_.size() * kFrameHeaderBytes; }

 private:
  const size_t copied_bytes_max_;
  const size_t retained_bytes_max_;
  std::deque<OutFrame> frames_;
  uint64_t first_ = 0;
  uint64_t cursor_ = 0;
  uint64_t written_end_ = 0;  // one past the last frame that was ever written whole
  size_t retained_bytes_ = 0;
};

}  // namespace rabit
