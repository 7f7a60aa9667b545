// The state of one send or receive, shared by the lanes that advance it and the thread that waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/transport.h"

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
  PieceReducer reducer{};  // run == nullptr: copy
  Bytes scratch;           // for a reduction: as long as the buffer
  bool is_done = false;
  Status status;

  void Deliver(uint64_t offset, ConstBytes piece) {
    if (piece.empty()) return;
    const Bytes target = buffer.subspan(offset, piece.size());
    if (reducer.run != nullptr) {
      reducer.run(reducer.context, target, piece);
    } else {
      std::memcpy(target.data(), piece.data(), piece.size());
    }
  }
  void Finish(Status result) {
    is_done = true;
    status = std::move(result);
  }
};

}  // namespace rabit
