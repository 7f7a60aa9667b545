#include <algorithm>
#include <cstdio>
#include <map>

#include "base/mutex.h"
#include "transport/tcp/tcp_channel.h"

namespace rabit {
namespace {

constexpr std::string_view kPurpose = "channel";
constexpr size_t kRanksShown = 8;

// Connections of the children that the listener hands over, by rank.
class Gathering {
 public:
  explicit Gathering(const std::vector<int>& children) : children_(children) {}

  void Take(AuthenticatedPeer peer) {
    const int rank = peer.greeting.rank;
    if (!std::binary_search(children_.begin(), children_.end(), rank)) return;
    MutexLock lock(mutex_);
    // A rank that dials again has given its earlier connection up.
    connections_.insert_or_assign(rank, std::move(peer.fd));
    changed_.NotifyAll();
  }

  // True when all have come, false at the deadline.
  bool Wait(Deadline deadline) {
    MutexLock lock(mutex_);
    while (connections_.size() < children_.size()) {
      if (!changed_.WaitUntil(mutex_, deadline)) break;
    }
    return connections_.size() == children_.size();
  }

  std::string MissingText() {
    MutexLock lock(mutex_);
    std::string text;
    size_t shown = 0;
    for (int rank : children_) {
      if (connections_.contains(rank)) continue;
      if (shown == kRanksShown) break;
      text += (shown++ == 0 ? "" : ", ") + std::to_string(rank);
    }
    const size_t missing = children_.size() - connections_.size();
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
  const std::vector<int>& children_;  // ascending
  Mutex mutex_;
  CondVar changed_;
  std::map<int, UniqueFd> connections_ RABIT_GUARDED_BY(mutex_);
};

Result<std::vector<ChannelConnection>> Gather(const ConnectContext& context,
                                              const std::vector<int>& children) {
  const auto start = std::chrono::steady_clock::now();
  Gathering gathering(children);
  context.listener.SetHandler(kPurpose,
                              [&](AuthenticatedPeer peer) { gathering.Take(std::move(peer)); });
  const bool has_all = gathering.Wait(context.deadline);
  context.listener.RemoveHandler(kPurpose);
  if (has_all) return gathering.TakeAll();
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return TimedOut("rank " + std::to_string(context.rank) + " waited " + std::string(seconds) +
                  " for the control channel of rank " + gathering.MissingText() +
                  "; see whether they started, and whether they can reach " +
                  context.listener.address());
}

Result<ChannelConnection> DialParent(const ConnectContext& context, int parent) {
  const std::string key = std::to_string(context.epoch) + "/address/" + std::to_string(parent);
  RABIT_ASSIGN_OR_RETURN(const std::string address, context.store.Get(key, context.deadline));
  const Greeting greeting = {std::string(kPurpose), context.epoch, context.rank, 0};
  RABIT_ASSIGN_OR_RETURN(UniqueFd fd,
                         Dial(address, context.secret, greeting, parent, context.deadline));
  return ChannelConnection{parent, std::move(fd)};
}

}  // namespace

Result<std::unique_ptr<Channel>> ConnectTcpChannel(const ConnectContext& context,
                                                   const RankTree& tree,
                                                   const ChannelOptions& options) {
  std::vector<ChannelConnection> connections;
  const std::vector<int>& children = tree.children(context.rank);
  if (!children.empty()) {
    RABIT_ASSIGN_OR_RETURN(connections, Gather(context, children));
  }
  if (const int parent = tree.parent(context.rank); parent >= 0) {
    RABIT_ASSIGN_OR_RETURN(ChannelConnection above, DialParent(context, parent));
    connections.push_back(std::move(above));
  }
  return MakeTcpChannel(context.rank, context.size, std::move(connections), options,
                        context.deadline);
}

}  // namespace rabit
