#include "transport/tcp/tcp_inbox.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace rabit {

Status TcpInbox::SizesDiffer(size_t expected, size_t sent) const {
  return Mismatch(whose_ + " expects " + std::to_string(expected) + " bytes from " + peer_ +
                  ", which sent " + std::to_string(sent) +
                  " bytes; call the same collective with the same sizes on every rank");
}

std::vector<std::shared_ptr<Transfer>>::const_iterator TcpInbox::FindPosted(Tag tag) const {
  return std::find_if(posted_.begin(), posted_.end(),
                      [tag](const auto& posted) { return posted->tag == tag; });
}

void TcpInbox::Post(const std::shared_ptr<Transfer>& receive) {
  const auto found = arrived_.find(receive->tag);
  // receive_mutex_ of the link is held in all of these.
  if (found == arrived_.end()) {
    if (!failure_.ok()) return receive->Finish(failure_);
    posted_.push_back(receive);
    ++posted_count_;
    return;
  }
  const std::shared_ptr<Arrival> arrival = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) arrived_.erase(found);
  for (const Block& block : arrival->blocks) unexpected_bytes_ -= block.bytes;
  // Its next frames will go straight into the receive's buffer.
  const bool is_arriving = arrival == arrival_;
  if (is_arriving) arrival_ = nullptr;
  // Sizes are compared before a byte is copied: the buffer is only as large as its rank expected.
  if (arrival->bytes != receive->bytes) {
    receive->sent_bytes = arrival->bytes;
    return receive->Finish(SizesDiffer(receive->bytes, arrival->bytes));
  }
  FillFrom(*arrival, *receive);
  if (arrival->is_whole) return receive->Finish(Status());
  if (!failure_.ok()) return receive->Finish(failure_);
  RABIT_CHECK(is_arriving, "a message that is not whole and does not arrive");
  receive_ = receive;
  ++posted_count_;
}

void TcpInbox::FillFrom(Arrival& arrival, Transfer& receive) {
  size_t offset = receive.part.begin;
  for (const Block& block : arrival.blocks) {
    std::memcpy(receive.buffer.data() + offset, block.data.get(), block.bytes);
    offset += block.bytes;
  }
  arrival.blocks.clear();
}

std::optional<std::vector<std::byte>> TcpInbox::Take(Tag tag) {
  const auto found = arrived_.find(tag);
  if (found == arrived_.end() || !found->second.front()->is_whole) return std::nullopt;
  const std::shared_ptr<Arrival> arrival = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) arrived_.erase(found);
  std::vector<std::byte> message;
  message.reserve(arrival->bytes);
  for (const Block& block : arrival->blocks) {
    message.insert(message.end(), block.data.get(), block.data.get() + block.bytes);
    unexpected_bytes_ -= block.bytes;
  }
  return message;
}

void TcpInbox::Cancel(const Transfer& receive) {
  if (receive.is_done.load(std::memory_order_relaxed)) return;
  --posted_count_;
  if (receive_.get() == &receive) {
    receive_ = nullptr;
    // The caller's buffer is gone after this call, and a frame was about to be read into it: the
    // rest goes into memory of our own.
    if (is_in_frame_ && chunk_owned_ == nullptr && chunk_bytes_ > 0) {
      chunk_owned_ = std::make_unique<std::byte[]>(chunk_bytes_);
      chunk_ = chunk_owned_.get();
    }
    return;
  }
  std::erase_if(posted_, [&](const auto& posted) { return posted.get() == &receive; });
}

void TcpInbox::Fail(const Status& why, bool keep_arrived) {
  if (failure_.ok()) failure_ = why;
  for (const auto& receive : posted_) receive->Finish(why);
  posted_.clear();
  Rollback();
  if (receive_) receive_->Finish(why);
  receive_ = nullptr;
  posted_count_ = 0;
  // What came in full before the end may still be taken.
  if (keep_arrived) return;
  arrived_.clear();
  arrival_ = nullptr;
  is_arriving_ = false;
  unexpected_bytes_ = 0;
}

bool TcpInbox::IsInOrder(const FrameHeader& header) const {
  if (!is_arriving_) {
    const Stripe::Part part = stripe_.PartOf(header.message_bytes);
    // The numbers come from the peer, and decide where bytes are written.
    return header.offset == part.begin && header.payload_bytes <= part.bytes() &&
           (header.payload_bytes > 0 || part.bytes() == 0);
  }
  return header.tag == tag_ && header.message_bytes == message_bytes_ &&
         header.offset == received_ && header.payload_bytes > 0 &&
         header.payload_bytes <= end_ - received_;
}

bool TcpInbox::IsUnexpected(const FrameHeader& header) const {
  return is_arriving_ ? arrival_ != nullptr : FindPosted(header.tag) == posted_.end();
}

void TcpInbox::Begin(const FrameHeader& header) {
  if (!is_arriving_) {
    is_arriving_ = true;
    tag_ = header.tag;
    message_bytes_ = header.message_bytes;
    received_ = stripe_.PartOf(message_bytes_).begin;
    end_ = stripe_.PartOf(message_bytes_).end;
    const auto found = FindPosted(tag_);
    if (found == posted_.end()) {
      arrival_ = std::make_shared<Arrival>();
      arrival_->bytes = message_bytes_;
      arrived_[tag_].push_back(arrival_);
    } else {
      receive_ = *found;
      posted_.erase(found);
      if (receive_->bytes != message_bytes_) {
        --posted_count_;
        receive_->sent_bytes = message_bytes_;
        receive_->Finish(SizesDiffer(receive_->bytes, message_bytes_));
        receive_ = nullptr;
      }
    }
  }
  is_in_frame_ = true;
  chunk_bytes_ = header.payload_bytes;
  if (receive_) {
    chunk_ = receive_->buffer.data() + received_;
  } else if (chunk_bytes_ > 0) {
    chunk_owned_.reset(new std::byte[chunk_bytes_]);
    chunk_ = chunk_owned_.get();
  }
}

std::shared_ptr<Transfer> TcpInbox::Commit() {
  is_in_frame_ = false;
  if (chunk_owned_ != nullptr) {
    if (receive_) {  // posted after the frame began
      std::memcpy(receive_->buffer.data() + received_, chunk_, chunk_bytes_);
    } else if (arrival_) {
      arrival_->blocks.push_back({std::move(chunk_owned_), chunk_bytes_});
      unexpected_bytes_ += chunk_bytes_;
    }  // else the receive was cancelled or had another size: the bytes are dropped
    chunk_owned_.reset();
  }
  received_ += chunk_bytes_;
  if (received_ < end_) return nullptr;
  is_arriving_ = false;
  if (arrival_) arrival_->is_whole = true;
  arrival_ = nullptr;
  std::shared_ptr<Transfer> finished = std::move(receive_);
  receive_ = nullptr;
  if (finished) {
    --posted_count_;
    finished->Finish(Status());
  }
  return finished;
}

void TcpInbox::Rollback() {
  is_in_frame_ = false;
  chunk_owned_.reset();
  chunk_ = nullptr;
}

}  // namespace rabit
