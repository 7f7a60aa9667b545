#include <cstdio>
#include <map>

#include "base/mutex.h"
#include "transport/tcp/tcp_channel.h"

namespace rabit {
namespace {

constexpr std::string_view kPurpose = "channel";

// Connections that rank 0's listener hands over, by rank.
class Gathering {
 public:
  explicit Gathering(int size) : size_(size) {}

  void Take(AuthenticatedPeer peer) {
    const int rank = peer.greeting.rank;
    if (rank < 1 || rank >= size_) return;
    MutexLock lock(mutex_);
    // A rank that dials again has given its earlier connection up.
    connections_.insert_or_assign(rank, std::move(peer.fd));
    changed_.NotifyAll();
  }

  // True when all have come, false at the deadline.
  bool Wait(Deadline deadline) {
    MutexLock lock(mutex_);
    while (static_cast<int>(connections_.size()) < size_ - 1) {
      if (!changed_.WaitUntil(mutex_, deadline)) break;
    }
    return static_cast<int>(connections_.size()) == size_ - 1;
  }

  std::string MissingText() {
    MutexLock lock(mutex_);
    std::string text;
    int shown = 0;
    for (int rank = 1; rank < size_ && shown < 8; ++rank) {
      if (connections_.contains(rank)) continue;
      text += (shown++ == 0 ? "" : ", ") + std::to_string(rank);
    }
    const int missing = size_ - 1 - static_cast<int>(connections_.size());
    return text + (missing > shown ? " and " + std::to_string(missing - shown) + " more" : "");
  }

  std::vector<ChannelConnection> TakeAll() {
    MutexLock lock(mutex_);
    std::vector<ChannelConnection> all;
    for (auto& [rank, fd] : connections_) all.push_back({rank, std::move(fd)});
    connections_.clear();
    return all;
  }

 private:
  const int size_;
  Mutex mutex_;
  CondVar changed_;
  std::map<int, UniqueFd> connections_ RABIT_GUARDED_BY(mutex_);
};

Result<std::vector<ChannelConnection>> Gather(const ConnectContext& context) {
  const auto start = std::chrono::steady_clock::now();
  Gathering gathering(context.size);
  context.listener.SetHandler(kPurpose,
                              [&](AuthenticatedPeer peer) { gathering.Take(std::move(peer)); });
  const bool has_all = gathering.Wait(context.deadline);
  context.listener.RemoveHandler(kPurpose);
  if (has_all) return gathering.TakeAll();
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return TimedOut("rank 0 waited " + std::string(seconds) + " for the control channel of rank " +
                  gathering.MissingText() +
                  "; see whether they started, and whether they can reach " +
                  context.listener.address());
}

Result<std::vector<ChannelConnection>> DialRankZero(const ConnectContext& context) {
  const std::string key = std::to_string(context.epoch) + "/address/0";
  RABIT_ASSIGN_OR_RETURN(const std::string address, context.store.Get(key, context.deadline));
  const Greeting greeting = {std::string(kPurpose), context.epoch, context.rank, 0};
  RABIT_ASSIGN_OR_RETURN(UniqueFd fd, Dial(address, context.secret, greeting, 0, context.deadline));
  std::vector<ChannelConnection> connections;
  connections.push_back({0, std::move(fd)});
  return connections;
}

}  // namespace

Result<std::unique_ptr<Channel>> ConnectTcpChannel(const ConnectContext& context,
                                                   const ChannelOptions& options) {
  RABIT_ASSIGN_OR_RETURN(std::vector<ChannelConnection> connections,
                         context.rank == 0 ? Gather(context) : DialRankZero(context));
  return MakeTcpChannel(context.rank, context.size, std::move(connections), options,
                        context.deadline);
}

}  // namespace rabit
