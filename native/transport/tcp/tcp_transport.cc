#include "transport/tcp/tcp_transport.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/tcp/redialer.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp/tcp_stream.h"

namespace rabit {
namespace {

constexpr std::string_view kPurpose = "tcp";
constexpr int kLinksMax = 256;  // the header has one byte

class TcpOperation final : public PendingOperation {
 public:
  TcpOperation(TcpLink& link, std::shared_ptr<Transfer> transfer)
      : link_(link), transfer_(std::move(transfer)) {}
  Status Wait(Deadline deadline) override { return link_.Wait(*transfer_, deadline); }
  void Cancel() override { link_.Cancel(*transfer_); }

 private:
  TcpLink& link_;
  const std::shared_ptr<Transfer> transfer_;
};

// One message over several links.
class StripedSend final : public PendingOperation {
 public:
  explicit StripedSend(std::vector<Operation> parts) : parts_(std::move(parts)) {}
  Status Wait(Deadline deadline) override {
    for (Operation& part : parts_) RABIT_RETURN_IF_ERROR(part.Wait(deadline));
    return Status();
  }
  void Cancel() override { parts_.clear(); }

 private:
  std::vector<Operation> parts_;
};

// Only the first link tells for certain what the peer sent: if its size is not the expected one,
// the other parts must be taken off their links all the same.
class StripedReceive final : public PendingOperation {
 public:
  StripedReceive(std::span<const std::unique_ptr<TcpLink>> links, Tag tag, Bytes buffer)
      : links_(links), tag_(tag), buffer_(buffer) {
    const size_t parts = links.front()->stripe().Cuts(buffer.size()) ? links.size() : 1;
    while (parts_.size() < parts) Post();
  }

  Status Wait(Deadline deadline) override {
    const Status first = links_[0]->Wait(*parts_[0], deadline);
    if (!first.ok() && first.code() != Code::kMismatch) return first;
    if (!links_[0]->stripe().Cuts(parts_[0]->sent_bytes)) return first;
    while (parts_.size() < links_.size()) Post();
    for (size_t i = 1; i < parts_.size(); ++i) {
      Status part = links_[i]->Wait(*parts_[i], deadline);
      if (!part.ok() && (first.ok() || part.code() != Code::kMismatch)) return part;
    }
    return first;
  }

  void Cancel() override {
    for (size_t i = 0; i < parts_.size(); ++i) links_[i]->Cancel(*parts_[i]);
    parts_.clear();
  }
  ~StripedReceive() override { Cancel(); }

 private:
  void Post() { parts_.push_back(links_[parts_.size()]->Recv(tag_, buffer_)); }

  const std::span<const std::unique_ptr<TcpLink>> links_;
  const Tag tag_;
  const Bytes buffer_;
  std::vector<std::shared_ptr<Transfer>> parts_;
};

class TcpTransport final : public Transport, public TcpLinkHost {
 public:
  TcpTransport(const ConnectContext& context, const TcpOptions& options)
      : rank_(context.rank),
        size_(context.size),
        epoch_(context.epoch),
        streams_(context.streams),
        secret_(context.secret),
        listener_(context.listener),
        options_(options),
        addresses_(static_cast<size_t>(context.size)),
        links_(static_cast<size_t>(context.size)),
        redialer_([this](const TcpLink& link, Deadline deadline) {
          return DialLink(link.peer(), link.index(), deadline);
        }) {}
  ~TcpTransport() override;

  Status Connect(Store& store, Deadline deadline);

  std::string_view name() const override { return "tcp"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Operation Send(int peer, Tag tag, ConstBytes buffer) override;
  Operation Recv(int peer, Tag tag, Bytes buffer) override;
  void SetWaiter(int stream, Waiter waiter) override {
    if (stream >= 0 && stream < streams_) {
      tcp_streams_[static_cast<size_t>(stream)]->SetWaiter(waiter);
    }
  }
  void Abort(Status why) override;
  TransportCounters counters() const override;

 private:
  void OnBroken(int peer, int link) override;
  void OnFailed(int peer, const Status& why) override;
  void OnConnected() override;

  bool IsPeer(int peer) const {
    return peer >= 0 && peer < size_ && !links_[static_cast<size_t>(peer)].empty();
  }
  void MakeLinks();
  Result<UniqueFd> DialLink(int peer, int index, Deadline deadline);
  void Accept(AuthenticatedPeer peer);
  Status WaitUntilReady(Deadline deadline);
  Status CheckArguments(int peer, Tag tag) const;
  std::span<const std::unique_ptr<TcpLink>> LinksFor(int peer, Tag tag) const;
  Deadline Tick();

  const int rank_;
  const int size_;
  const uint64_t epoch_;
  const int streams_;
  const Secret secret_;
  Listener& listener_;
  const TcpOptions options_;
  TcpCounters counters_;
  std::vector<std::string> addresses_;  // of the ranks that this one dials
  std::unique_ptr<IoLoop> loop_;
  std::vector<std::unique_ptr<TcpStream>> tcp_streams_;  // by stream; fixed before the loop starts
  std::vector<std::vector<std::unique_ptr<TcpLink>>> links_;  // by peer; empty: not a peer
  bool is_listening_ = false;

  Mutex mutex_;  // taken with a link's locks held
  CondVar connected_;
  std::set<TcpLink*> broken_;
  std::vector<std::pair<int, Status>> failures_;  // peers whose other links must fail too
  bool is_aborted_ = false;

  Redialer redialer_;
};

TcpTransport::~TcpTransport() {
  if (is_listening_) listener_.RemoveHandler(kPurpose);
  redialer_.Stop();
  const Deadline deadline = After(options_.linger);
  std::vector<std::pair<TcpLink*, std::shared_ptr<Transfer>>> goodbyes;
  for (const auto& links : links_) {
    for (const auto& link : links) goodbyes.emplace_back(link.get(), link->StartClose());
  }
  for (const auto& [link, goodbye] : goodbyes) (void)link->Wait(*goodbye, deadline);
  if (loop_ != nullptr) loop_->Stop();
  links_.clear();
}

void TcpTransport::MakeLinks() {
  const int stripes = options_.connections_per_stream;
  for (int peer = 0; peer < size_; ++peer) {
    const auto& chosen = options_.peers;
    if (peer == rank_) continue;
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), peer) == chosen.end()) continue;
    for (int index = 0; index < streams_ * stripes; ++index) {
      const Stripe stripe{index % stripes, stripes, options_.stripe_bytes_min};
      links_[static_cast<size_t>(peer)].push_back(
          std::make_unique<TcpLink>(TcpLink::Id{rank_, peer, index, stripe}, options_, counters_,
                                    *tcp_streams_[static_cast<size_t>(index / stripes)], *this));
    }
  }
}

Status TcpTransport::Connect(Store& store, Deadline deadline) {
  const int links = streams_ * options_.connections_per_stream;
  if (streams_ < 1 || options_.connections_per_stream < 1 || links > kLinksMax) {
    return InvalidArgument("rank " + std::to_string(rank_) + ": " + std::to_string(streams_) +
                           " streams of " + std::to_string(options_.connections_per_stream) +
                           " TCP connections; there must be 1 to " + std::to_string(kLinksMax) +
                           " connections for each pair of ranks");
  }
  for (int stream = 0; stream < streams_; ++stream) {
    RABIT_ASSIGN_OR_RETURN(auto opened, TcpStream::Open(options_.spin));
    tcp_streams_.push_back(std::move(opened));
  }
  RABIT_ASSIGN_OR_RETURN(loop_, IoLoop::Start([this] { return Tick(); }));
  for (const auto& stream : tcp_streams_) RABIT_RETURN_IF_ERROR(stream->Attach(*loop_));
  MakeLinks();
  listener_.SetHandler(kPurpose, [this](AuthenticatedPeer peer) { Accept(std::move(peer)); });
  is_listening_ = true;
  for (int peer = 0; peer < rank_; ++peer) {
    if (!IsPeer(peer)) continue;
    const std::string key = std::to_string(epoch_) + "/address/" + std::to_string(peer);
    RABIT_ASSIGN_OR_RETURN(addresses_[static_cast<size_t>(peer)], store.Get(key, deadline));
    for (int index = 0; index < links; ++index) {
      RABIT_ASSIGN_OR_RETURN(UniqueFd fd, DialLink(peer, index, deadline));
      links_[static_cast<size_t>(peer)][static_cast<size_t>(index)]->Attach(std::move(fd));
    }
  }
  return WaitUntilReady(deadline);
}

Result<UniqueFd> TcpTransport::DialLink(int peer, int index, Deadline deadline) {
  return Dial(addresses_[static_cast<size_t>(peer)], secret_,
              Greeting{std::string(kPurpose), epoch_, rank_, index}, peer, deadline);
}

// The listener's thread.  Also how a broken link comes back.
void TcpTransport::Accept(AuthenticatedPeer peer) {
  const Greeting& from = peer.greeting;
  if (from.rank <= rank_ || !IsPeer(from.rank)) return;
  auto& links = links_[static_cast<size_t>(from.rank)];
  if (from.stream < 0 || static_cast<size_t>(from.stream) >= links.size()) return;
  links[static_cast<size_t>(from.stream)]->Attach(std::move(peer.fd));
}

Status TcpTransport::WaitUntilReady(Deadline deadline) {
  for (;;) {
    std::string missing;
    MutexLock lock(mutex_);
    for (int peer = 0; peer < size_; ++peer) {
      const auto& links = links_[static_cast<size_t>(peer)];
      const auto is_missing = [](const auto& link) { return !link->is_ready(); };
      if (std::none_of(links.begin(), links.end(), is_missing)) continue;
      missing += (missing.empty() ? "" : ", ") + std::to_string(peer);
    }
    if (missing.empty()) return Status();
    for (const auto& [peer, why] : failures_) return why;
    if (!connected_.WaitUntil(mutex_, deadline)) {
      return TimedOut("rank " + std::to_string(rank_) + ": no TCP connection with rank(s) " +
                      missing + " before the deadline; are they running, and does a firewall " +
                      "between the hosts let their ports through?");
    }
  }
}

Status TcpTransport::CheckArguments(int peer, Tag tag) const {
  if (!IsPeer(peer)) {
    return InvalidArgument("rank " + std::to_string(rank_) + " has no TCP peer " +
                           std::to_string(peer) + ": the job has " + std::to_string(size_) +
                           " ranks");
  }
  if (StreamOf(tag) >= streams_) {
    return InvalidArgument("rank " + std::to_string(rank_) + ": tag " + std::to_string(tag) +
                           " is of stream " + std::to_string(StreamOf(tag)) + "; there are " +
                           std::to_string(streams_));
  }
  return Status();
}

// The links of the tag's stream.
std::span<const std::unique_ptr<TcpLink>> TcpTransport::LinksFor(int peer, Tag tag) const {
  const auto stripes = static_cast<size_t>(options_.connections_per_stream);
  return std::span(links_[static_cast<size_t>(peer)])
      .subspan(static_cast<size_t>(StreamOf(tag)) * stripes, stripes);
}

Operation TcpTransport::Send(int peer, Tag tag, ConstBytes buffer) {
  if (Status status = CheckArguments(peer, tag); !status.ok()) return Operation(std::move(status));
  const auto links = LinksFor(peer, tag);
  const auto start_on = [&](TcpLink& link) {
    auto transfer = link.Send(tag, buffer);
    if (transfer->is_done.load(std::memory_order_acquire)) return Operation(transfer->status);
    return Operation(std::make_unique<TcpOperation>(link, std::move(transfer)));
  };
  if (!links.front()->stripe().Cuts(buffer.size())) return start_on(*links.front());
  std::vector<Operation> parts;
  for (const auto& link : links) parts.push_back(start_on(*link));
  return Operation(std::make_unique<StripedSend>(std::move(parts)));
}

Operation TcpTransport::Recv(int peer, Tag tag, Bytes buffer) {
  if (Status status = CheckArguments(peer, tag); !status.ok()) return Operation(std::move(status));
  const auto links = LinksFor(peer, tag);
  if (links.size() > 1) {
    return Operation(std::make_unique<StripedReceive>(links, tag, buffer));
  }
  return Operation(
      std::make_unique<TcpOperation>(*links.front(), links.front()->Recv(tag, buffer)));
}

void TcpTransport::Abort(Status why) {
  {
    MutexLock lock(mutex_);
    if (is_aborted_) return;
    is_aborted_ = true;
  }
  for (const auto& links : links_) {
    for (const auto& link : links) link->Fail(why);
  }
}

TransportCounters TcpTransport::counters() const {
  TransportCounters counters;
  counters.bytes_sent = counters_.bytes_sent.load();
  counters.bytes_received = counters_.bytes_received.load();
  counters.messages_sent = counters_.messages_sent.load();
  counters.messages_received = counters_.messages_received.load();
  counters.frames_corrupt = counters_.frames_corrupt.load();
  counters.frames_resent = counters_.frames_resent.load();
  counters.connections_restored = counters_.connections_restored.load();
  return counters;
}

void TcpTransport::OnBroken(int peer, int index) {
  TcpLink& link = *links_[static_cast<size_t>(peer)][static_cast<size_t>(index)];
  {
    MutexLock lock(mutex_);
    broken_.insert(&link);
  }
  if (peer < rank_) redialer_.Request(link);
  loop_->Wake();
}

void TcpTransport::OnFailed(int peer, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!is_aborted_) failures_.emplace_back(peer, why);
    connected_.NotifyAll();
  }
  loop_->Wake();
}

void TcpTransport::OnConnected() {
  MutexLock lock(mutex_);
  connected_.NotifyAll();
}

// The I/O thread: a peer that one link has lost is lost to all of them.
Deadline TcpTransport::Tick() {
  std::vector<std::pair<int, Status>> failures;
  std::vector<TcpLink*> broken;
  {
    MutexLock lock(mutex_);
    failures = failures_;
    broken.assign(broken_.begin(), broken_.end());
    broken_.clear();  // before the look, so that a link that breaks meanwhile is not forgotten
  }
  for (const auto& [peer, why] : failures) {
    for (const auto& link : links_[static_cast<size_t>(peer)]) link->Fail(why);
  }
  const Deadline now = std::chrono::steady_clock::now();
  Deadline next = now + std::chrono::hours(1);
  for (const auto& stream : tcp_streams_) next = std::min(next, stream->OnTick(now));
  for (TcpLink* link : broken) {
    link->CheckOutage(now);
    const std::optional<Deadline> end = link->outage_deadline();
    if (!end) continue;
    next = std::min(next, *end);
    MutexLock lock(mutex_);
    broken_.insert(link);
  }
  return next;
}

}  // namespace

Result<std::unique_ptr<Transport>> ConnectTcpTransport(const ConnectContext& context,
                                                       const TcpOptions& options) {
  auto transport = std::make_unique<TcpTransport>(context, options);
  RABIT_RETURN_IF_ERROR(transport->Connect(context.store, context.deadline));
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace rabit
