#include "transport/transport.h"

#include <memory>
#include <optional>
#include <utility>

namespace rabit {
namespace {

// Receives into the scratch and reduces when all of it is there.
class ReceiveThenReduce final : public PendingOperation {
 public:
  ReceiveThenReduce(Operation receive, Bytes buffer, Bytes scratch, PieceReducer reducer)
      : receive_(std::move(receive)), buffer_(buffer), scratch_(scratch), reducer_(reducer) {}

  Status Wait(Deadline deadline) override {
    RABIT_RETURN_IF_ERROR(receive_->Wait(deadline));
    // The reduction runs on the thread that waits, and only once: a wait that has timed out returns
    // above.
    if (!buffer_.empty()) reducer_.run(reducer_.context, buffer_, scratch_);
    return Status();
  }
  void Cancel() override { receive_.reset(); }

 private:
  std::optional<Operation> receive_;
  const Bytes buffer_;
  const Bytes scratch_;
  const PieceReducer reducer_;
};

}  // namespace

Operation Transport::RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                                PieceReducer reducer) {
  const Bytes whole = scratch.first(buffer.size());
  return Operation(
      std::make_unique<ReceiveThenReduce>(Recv(peer, tag, whole), buffer, whole, reducer));
}

}  // namespace rabit
