// Transfer: what an operation and its link share about one message.
#pragma once

#include <atomic>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"

namespace rabit {

// Which part of every message a link carries: a message of `bytes_min` or more is cut into `count`
// nearly equal parts, a smaller one is the first link's.  Both sides know a message's size, so both
// cut it alike.
struct Stripe {
  struct Part {
    size_t begin = 0;
    size_t end = 0;
    size_t bytes() const { return end - begin; }
  };

  int index = 0;
  int count = 1;
  size_t bytes_min = 0;

  bool Cuts(size_t message_bytes) const { return count > 1 && message_bytes >= bytes_min; }
  Part PartOf(size_t message_bytes) const {
    if (!Cuts(message_bytes)) return {0, message_bytes};
    const auto at = [&](int i) {
      const auto n = static_cast<size_t>(count);
      return message_bytes / n * static_cast<size_t>(i) +
             message_bytes % n * static_cast<size_t>(i) / n;
    };
    return {at(index), at(index + 1)};
  }
};

struct Transfer {
  Transfer(bool is_send, Tag tag, size_t bytes, Stripe stripe)
      : is_send(is_send), tag(tag), bytes(bytes), part(stripe.PartOf(bytes)) {}

  // Once.  The status is read by whoever sees `is_done`.
  void Finish(Status result) {
    status = std::move(result);
    is_done.store(true, std::memory_order_release);
  }

  const bool is_send;
  const Tag tag;
  const size_t bytes;         // of the whole message
  const Stripe::Part part;    // what this link carries of it
  size_t sent_bytes = bytes;  // a receive that is kMismatch: the size of the peer's message
  Bytes buffer;               // of a receive; the whole message
  bool is_detached = false;   // a cancelled send; the link reads its own copy
  bool is_answered = false;   // of a send: what comes back acknowledges it
  Status status;
  std::atomic<bool> is_done{false};
};

}  // namespace rabit
