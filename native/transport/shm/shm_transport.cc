#include "transport/shm/shm_transport.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/measured.h"
#include "transport/shm/handshake.h"
#include "transport/shm/inbox.h"
#include "transport/shm/peer_process.h"
#include "transport/shm/shm_stream.h"

namespace rabit {
namespace {

constexpr uint32_t kRingBytesMax = 1 << 20;
constexpr uint32_t kRingBytesMin = 16 * 1024;
// The number of lanes grows with the square of the ranks, the memory of a host does not: this is
// what all inboxes of a host take together at most, unless the smallest rings need more.
constexpr uint64_t kHostBytesWanted = uint64_t{1} << 30;

class ShmTransport final : public Transport {
 public:
  ShmTransport(const ConnectContext& context, Inbox inbox, std::vector<ShmPeer> peers,
               const std::vector<int>& local_ranks, const ShmOptions& options, uint32_t chunk_bytes,
               const SpinTimes& spin)
      : rank_(context.rank),
        size_(context.size),
        inbox_(std::move(inbox)),
        index_of_(static_cast<size_t>(context.size), -1) {
    for (int stream = 0; stream < context.streams; ++stream) {
      streams_.emplace_back(inbox_.doorbell(stream), spin);
    }
    const auto position = [&](int rank, int without) {
      const auto found = std::find(local_ranks.begin(), local_ranks.end(), rank);
      // An inbox has no lane for its owner, so the ranks above it stand one place lower.
      return static_cast<int>(found - local_ranks.begin()) - (rank > without ? 1 : 0);
    };
    for (ShmPeer& peer : peers) {
      const LaneOptions lane_options{
          .chunk_bytes = chunk_bytes,
          .single_copy_min_bytes = peer.wants_offers ? options.single_copy_min_bytes : ~uint64_t{0},
          .is_checked = options.is_checked};
      processes_.emplace_back(peer.rank, peer.pid, std::move(peer.connection));
      peer_inboxes_.push_back(std::move(peer.inbox));
      Inbox& theirs = peer_inboxes_.back();
      for (int stream = 0; stream < context.streams; ++stream) {
        index_of_[static_cast<size_t>(peer.rank)] = streams_[static_cast<size_t>(stream)].AddPeer(
            processes_.back(), theirs.lane(position(rank_, peer.rank), stream),
            theirs.doorbell(stream), inbox_.lane(position(peer.rank, rank_), stream), lane_options);
      }
    }
  }

  std::string_view name() const override { return "shm"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    if (Status status = Check(peer, tag); !status.ok()) return Operation(status);
    return streams_[static_cast<size_t>(StreamOf(tag))].Send(index_of_[peer], tag, buffer);
  }
  Operation Recv(int peer, Tag tag, Bytes buffer) override {
    return RecvReduce(peer, tag, buffer, {}, {});
  }
  Operation RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                       PieceReducer reducer) override {
    if (Status status = Check(peer, tag); !status.ok()) return Operation(status);
    RecvState recv;
    recv.tag = tag;
    recv.buffer = buffer;
    recv.reducer = reducer;
    recv.scratch = scratch;
    return streams_[static_cast<size_t>(StreamOf(tag))].Recv(index_of_[static_cast<size_t>(peer)],
                                                             std::move(recv));
  }
  void SetWaiter(int stream, Waiter waiter, size_t) override {
    if (stream < 0 || static_cast<size_t>(stream) >= streams_.size()) return;
    streams_[static_cast<size_t>(stream)].SetWaiter(waiter);
  }
  void Abort(Status why) override {
    for (ShmStream& stream : streams_) stream.Abort(why);
  }
  // What passes through the ring is reduced there.  A single copy comes from the cache of another
  // core page by page, which pays for more than the caches hold.
  int64_t cached_message_bytes(int) const override { return kCachedMessageBytes; }
  TransportCounters counters() const override {
    TransportCounters sum;
    for (const ShmStream& stream : streams_) stream.AddCounters(sum);
    return sum;
  }

 private:
  Status Check(int peer, Tag tag) const {
    if (peer < 0 || peer >= size_ || index_of_[static_cast<size_t>(peer)] < 0) {
      return InvalidArgument("shm: rank " + std::to_string(rank_) +
                             " has no shared memory with rank " + std::to_string(peer) +
                             "; it is on another host or is this rank itself");
    }
    if (static_cast<size_t>(StreamOf(tag)) >= streams_.size()) {
      return InvalidArgument("shm: stream " + std::to_string(StreamOf(tag)) + " of " +
                             std::to_string(streams_.size()) +
                             "; open more streams when connecting");
    }
    return Status();
  }

  const int rank_;
  const int size_;
  // Deques: streams keep references into them.
  Inbox inbox_;
  std::deque<Inbox> peer_inboxes_;
  std::deque<PeerProcess> processes_;
  std::vector<int> index_of_;  // by global rank; -1: not reachable
  std::deque<ShmStream> streams_;
};

Status CheckOptions(const ShmOptions& options) {
  if (options.ring_bytes % 4096 != 0 || options.ring_bytes > (1u << 30)) {
    return InvalidArgument("shm: ring_bytes is " + std::to_string(options.ring_bytes) +
                           "; use a multiple of 4096 of at most 1 GiB, or 0");
  }
  if (options.chunk_bytes < 4096 || options.chunk_bytes % kDataAlignment != 0) {
    return InvalidArgument("shm: chunk_bytes is " + std::to_string(options.chunk_bytes) +
                           "; use a multiple of 64 of at least 4096");
  }
  if (options.spin_us < -1) {
    return InvalidArgument("shm: spin_us is " + std::to_string(options.spin_us) +
                           "; use microseconds, or -1 for the default");
  }
  return Status();
}

std::vector<int> LocalPeers(const ConnectContext& context) {
  std::vector<int> peers;
  for (int rank = 0; rank < context.size; ++rank) {
    if (rank != context.rank && context.topology.SameHost(rank, context.rank)) {
      peers.push_back(rank);
    }
  }
  return peers;
}

}  // namespace

uint32_t ShmRingBytes(const ShmOptions& options, int local_ranks, int streams) {
  if (options.ring_bytes != 0) return options.ring_bytes;
  const int64_t lanes = int64_t{local_ranks} * (local_ranks - 1) * streams;
  const uint64_t share = kHostBytesWanted / static_cast<uint64_t>(std::max<int64_t>(lanes, 1));
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(share / 4096 * 4096, kRingBytesMin, kRingBytesMax));
}

Result<Inbox> ReserveShm(const ConnectContext& context, const ShmOptions& options) {
  RABIT_RETURN_IF_ERROR(CheckOptions(options));
  const auto peers = static_cast<int>(LocalPeers(context).size());
  return Inbox::Create({.senders = peers,
                        .streams = context.streams,
                        .ring_bytes = ShmRingBytes(options, peers + 1, context.streams)},
                       Rings::kReservedByUse);
}

Status ProbeShm(const ShmOptions& options) {
  RABIT_RETURN_IF_ERROR(CheckOptions(options));
  return Inbox::Create({.senders = 1, .streams = 1, .ring_bytes = 4096}).status();
}

Result<std::unique_ptr<Transport>> ConnectShmTransport(const ConnectContext& context,
                                                       const ShmOptions& options) {
  RABIT_ASSIGN_OR_RETURN(Inbox inbox, ReserveShm(context, options));
  return ConnectShmTransport(context, options, std::move(inbox));
}

Result<std::unique_ptr<Transport>> ConnectShmTransport(const ConnectContext& context,
                                                       const ShmOptions& options, Inbox inbox) {
  const std::vector<int> peers = LocalPeers(context);
  std::vector<int> local_ranks = peers;
  local_ranks.insert(std::upper_bound(local_ranks.begin(), local_ranks.end(), context.rank),
                     context.rank);
  ShmAgreement agreement;
  // What is copied between two memories passes no checksum.
  agreement.single_copy = options.is_checked ? SingleCopy::kOff : options.single_copy;
  agreement.shape = inbox.shape();
  // At least four chunks in the ring: two are copied in and out while two are on their way.
  const uint32_t chunk_bytes = std::min(options.chunk_bytes, agreement.shape.ring_bytes / 4);

  std::vector<ShmInvitation> invited;
  for (const int peer : peers) invited.push_back({peer, &inbox});
  RABIT_ASSIGN_OR_RETURN(std::vector<ShmPeer> connected,
                         MeetShmPeers(context, invited, "shm", ShmMeeting::kAll, agreement));
  // Every peer has received a descriptor of its own by now; this one would only count towards the
  // limit of open files.
  inbox.CloseFd();
  return std::unique_ptr<Transport>(std::make_unique<ShmTransport>(
      context, std::move(inbox), std::move(connected), local_ranks, options, chunk_bytes,
      SpinTimesFor(options.spin_us, context.topology.CoresAt(context.rank))));
}

}  // namespace rabit
