#include "backend/mpi/mpi_transport.h"

#include <atomic>
#include <bit>
#include <string>
#include <vector>

namespace rabit {
namespace {

struct Counters {
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};
  std::atomic<uint64_t> messages_sent{0}, messages_received{0};
};

struct Message {
  int peer;
  bool is_send;
  size_t bytes;
};

class MpiOperation final : public PendingOperation {
 public:
  MpiOperation(std::shared_ptr<MpiJob> job, Counters& counters, Message message)
      : job_(std::move(job)), counters_(counters), message_(message) {}

  // Long messages are several pieces; MPI keeps their order.
  Status Start(std::byte* data, int tag, MpiHandle comm) {
    // A count of MPI is an int.
    const auto piece_max = static_cast<size_t>(job_->handles().message_bytes);
    size_t at = 0;
    do {
      const size_t bytes = std::min(message_.bytes - at, piece_max);
      MpiHandle request = 0;
      // A piece that has begun stays in pieces_, so that Cancel finds it if a later one fails.
      RABIT_RETURN_IF_ERROR(message_.is_send
                                ? job_->library().Isend(data + at, static_cast<int>(bytes),
                                                        message_.peer, tag, comm, &request)
                                : job_->library().Irecv(data + at, static_cast<int>(bytes),
                                                        message_.peer, tag, comm, &request));
      pieces_.push_back({request, static_cast<int64_t>(bytes)});
      at += bytes;
    } while (at < message_.bytes);
    return Status();
  }

  Status Wait(Deadline deadline) override {
    while (next_ < pieces_.size()) {
      Piece& piece = pieces_[next_];
      int64_t received = piece.bytes;
      const Status status =
          job_->Wait(&piece.request, message_.is_send ? nullptr : &received, "a message", deadline);
      // The operation stays as it is, so that the caller may wait again.
      if (status.code() == Code::kTimedOut) return TimedOut(Describe() + " is not finished");
      if (!status.ok()) {
        Cancel();
        return status;
      }
      ++next_;
      // MPI accepts a message that is shorter than the buffer; here that is a mismatch of ranks.
      if (received != piece.bytes) {
        return Mismatch(Describe() + " got " + std::to_string(received) +
                        " bytes; both sides must name the same size");
      }
    }
    Count();
    return Status();
  }

  void Cancel() override {
    for (; next_ < pieces_.size(); ++next_) {
      // A send cannot be cancelled portably; its buffer must live until MPI is through with it.
      // The memory of a cancelled receive is free for the caller only after this returns.
      if (!message_.is_send) (void)job_->CancelReceive(&pieces_[next_].request);
    }
  }

 private:
  struct Piece {
    MpiHandle request;
    int64_t bytes;
  };

  std::string Describe() const {
    return "rank " + std::to_string(job_->options().rank) +
           (message_.is_send ? ": a send of " : ": a receive of ") +
           std::to_string(message_.bytes) +
           (message_.is_send ? " bytes to rank " : " bytes from rank ") +
           std::to_string(message_.peer);
  }
  void Count() {
    auto& bytes = message_.is_send ? counters_.bytes_sent : counters_.bytes_received;
    auto& messages = message_.is_send ? counters_.messages_sent : counters_.messages_received;
    bytes.fetch_add(message_.bytes, std::memory_order_relaxed);
    messages.fetch_add(1, std::memory_order_relaxed);
  }

  const std::shared_ptr<MpiJob> job_;
  Counters& counters_;
  const Message message_;
  std::vector<Piece> pieces_;
  size_t next_ = 0;  // pieces before it are done
};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(std::shared_ptr<MpiJob> job)
      : job_(std::move(job)),
        // The largest 2^k - 1 that MPI takes as a tag.
        tag_mask_(std::bit_floor(static_cast<uint64_t>(job_->handles().tag_max) + 1) - 1) {}

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return job_->options().rank; }
  int size() const override { return job_->options().size; }

  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    return Start({peer, true, buffer.size()}, tag, const_cast<std::byte*>(buffer.data()));
  }
  Operation Recv(int peer, Tag tag, Bytes buffer) override {
    return Start({peer, false, buffer.size()}, tag, buffer.data());
  }

  void Abort(Status why) override { job_->Abort(std::move(why)); }

  // A long message begins with a handshake, some 15 us through Open MPI on one host, and moves only
  // while somebody calls MPI: pieces overlap little, so they are few.
  ChunkLimits chunk_limits() const override { return {512 << 10, 1 << 20}; }

  TransportCounters counters() const override {
    TransportCounters all;
    all.bytes_sent = counters_.bytes_sent.load();
    all.bytes_received = counters_.bytes_received.load();
    all.messages_sent = counters_.messages_sent.load();
    all.messages_received = counters_.messages_received.load();
    return all;
  }

 private:
  Operation Start(Message message, Tag tag, std::byte* data) {
    if (job_->is_aborted()) return Operation(job_->failure());
    const int lane = StreamOf(tag);
    if (message.peer < 0 || message.peer >= size() || message.peer == rank() ||
        lane >= job_->options().lanes) {
      return Operation(InvalidArgument(
          "rank " + std::to_string(rank()) + " has no peer " + std::to_string(message.peer) +
          " on lane " + std::to_string(lane) + ": the job has " + std::to_string(size()) +
          " ranks and " + std::to_string(job_->options().lanes) + " lanes"));
    }
    // Cutting the tag makes distant buckets of a lane look alike.  That is harmless: a lane runs
    // its buckets in one order on all ranks, and MPI keeps the order of messages that look alike.
    const int mpi_tag = static_cast<int>(tag & tag_mask_);
    auto operation = std::make_unique<MpiOperation>(job_, counters_, message);
    const Status started = operation->Start(data, mpi_tag, job_->MessagesOf(lane));
    if (!started.ok()) {
      operation->Cancel();
      return Operation(started);
    }
    return Operation(std::unique_ptr<PendingOperation>(std::move(operation)));
  }

  const std::shared_ptr<MpiJob> job_;
  const uint64_t tag_mask_;
  Counters counters_;
};

}  // namespace

std::unique_ptr<Transport> MakeMpiTransport(std::shared_ptr<MpiJob> job) {
  return std::make_unique<MpiTransport>(std::move(job));
}

}  // namespace rabit
