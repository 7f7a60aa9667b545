// The state of one send or receive, shared by the lanes that advance it and the thread that waits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"

namespace rabit {

// Guarded by the lock of the stream that it belongs to.
struct SendState {
  Tag tag = 0;
  ConstBytes buffer;
  size_t sent = 0;  // bytes put into the ring
  bool is_done = false;
  Status status;

  void Finish(Status result) {
    is_done = true;
    status = std::move(result);
  }
};

struct RecvState {
  Tag tag = 0;
  Bytes buffer;
  bool is_done = false;
  Status status;

  void Finish(Status result) {
    is_done = true;
    status = std::move(result);
  }
};

}  // namespace rabit
