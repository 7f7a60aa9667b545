// TcpInbox: matches the messages that arrive on one link with the receives that were posted.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/tcp/frame.h"
#include "transport/tcp/transfer.h"

namespace rabit {

// Payload goes straight to the buffer of the posted receive; if there is none yet, to blocks of
// its own.  One message arrives at a time, in frames: Begin, bytes to destination(), then Commit
// or Rollback.  No I/O and no lock of its own: the link's receive lock guards it.
class TcpInbox {
 public:
  // `whose`: "rank 0", `peer`: "rank 1", for messages.
  TcpInbox(std::string whose, std::string peer, Stripe stripe)
      : whose_(std::move(whose)), peer_(std::move(peer)), stripe_(stripe) {}

  // Posts a receive; it may be done on return.
  void Post(const std::shared_ptr<Transfer>& receive);
  // Returns when the buffer is not used any more.  The rest of a message that was on its way into
  // it is dropped.
  void Cancel(const Transfer& receive);
  // Finishes every posted receive with `why`; later ones too, unless their message is here already
  // and `keep_arrived`.
  void Fail(const Status& why, bool keep_arrived);

  // The oldest whole message with this tag that no receive was posted for.
  std::optional<std::vector<std::byte>> Take(Tag tag);

  // Whether the frame continues the message that is arriving, or starts one.
  bool IsInOrder(const FrameHeader& header) const;
  // Whether nobody has asked for the frame's message.
  bool IsUnexpected(const FrameHeader& header) const;
  void Begin(const FrameHeader& header);
  std::byte* destination() { return chunk_; }
  // The frame is whole.  Returns the receive that it finished, if any.
  std::shared_ptr<Transfer> Commit();
  // The frame will come again.
  void Rollback();

  size_t unexpected_bytes() const { return unexpected_bytes_; }
  size_t posted() const { return posted_count_; }

 private:
  struct Block {
    std::unique_ptr<std::byte[]> data;
    size_t bytes = 0;
  };
  // A message without a receive.
  struct Arrival {
    size_t bytes = 0;  // of the whole message
    bool is_whole = false;
    std::vector<Block> blocks;
  };

  // The first receive with this tag, or the end.
  std::vector<std::shared_ptr<Transfer>>::const_iterator FindPosted(Tag tag) const;
  Status SizesDiffer(size_t expected, size_t sent) const;
  void FillFrom(Arrival& arrival, Transfer& receive);

  const std::string whose_;
  const std::string peer_;
  const Stripe stripe_;
  Status failure_;
  // In the order of posting.  A collective has a few receives in flight, so looking at each costs
  // less than a table.
  std::vector<std::shared_ptr<Transfer>> posted_;
  std::unordered_map<Tag, std::deque<std::shared_ptr<Arrival>>> arrived_;
  size_t posted_count_ = 0;
  size_t unexpected_bytes_ = 0;

  // The message that is arriving; with neither a receive nor an arrival it is dropped.
  bool is_arriving_ = false;
  Tag tag_ = 0;
  size_t message_bytes_ = 0;
  size_t received_ = 0;  // offset of the next byte in the message
  size_t end_ = 0;       // of this link's part
  std::shared_ptr<Transfer> receive_;
  std::shared_ptr<Arrival> arrival_;

  // The frame that is arriving.
  bool is_in_frame_ = false;
  size_t chunk_bytes_ = 0;
  std::byte* chunk_ = nullptr;
  std::unique_ptr<std::byte[]> chunk_owned_;  // null: chunk_ is in the receive's buffer
};

}  // namespace rabit
