#include "transport/tcp/tcp_transport.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/tcp/tcp_links.h"
#include "transport/tcp/tcp_stream.h"

namespace rabit {
namespace {

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

class TcpTransport final : public Transport, public LinkBorrower {
 public:
  TcpTransport(const ConnectContext& context, const TcpOptions& options)
      : rank_(context.rank),
        size_(context.size),
        streams_(context.streams),
        keeper_(context.keeper),
        options_(options) {
    if (keeper_ != nullptr) keeper_->Enter(*this);
  }
  ~TcpTransport() override;

  Status Connect(const ConnectContext& context);

  std::string_view name() const override { return "tcp"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Operation Send(int peer, Tag tag, ConstBytes buffer) override;
  Operation SendAnswered(int peer, Tag tag, ConstBytes buffer) override;
  Operation Recv(int peer, Tag tag, Bytes buffer) override;
  void SetWaiter(int stream, Waiter waiter, size_t call_bytes) override {
    if (stream < 0 || stream >= streams_) return;
    tcp_streams_[static_cast<size_t>(stream)]->SetWaiter(waiter, call_bytes);
  }
  void Abort(Status why) override { links_->Abort(why); }
  void GiveBack() override;
  TransportCounters counters() const override;

 private:
  Operation Start(int peer, Tag tag, ConstBytes buffer, bool is_answered);
  std::vector<int> Peers() const;
  Status CheckArguments(int peer, Tag tag) const;
  std::span<const std::unique_ptr<TcpLink>> LinksFor(int peer, Tag tag) const;
  Deadline Tick();

  const int rank_;
  const int size_;
  const int streams_;
  LinkKeeper* const keeper_;  // null: connections end with this
  const TcpOptions options_;
  std::vector<std::unique_ptr<TcpStream>> tcp_streams_;  // by stream; fixed before the loop starts
  std::unique_ptr<TcpLinks> links_;
  std::unique_ptr<IoLoop> loop_;
};

void TcpTransport::GiveBack() {
  if (links_ == nullptr) return;
  links_->StopConnecting();
  if (loop_ != nullptr) loop_->Stop();
  // After the loop has stopped, so that no thread reads from a connection that the pool has taken.
  links_->Retire();
}

TcpTransport::~TcpTransport() {
  if (keeper_ != nullptr) {
    keeper_->Leave(*this);
    GiveBack();
    links_.reset();  // before the streams
    return;
  }
  if (links_ == nullptr) return;
  links_->StopConnecting();
  const Deadline deadline = After(options_.linger);
  std::vector<std::pair<TcpLink*, std::shared_ptr<Transfer>>> goodbyes;
  for (int peer = 0; peer < size_; ++peer) {
    for (const auto& link : links_->With(peer)) {
      goodbyes.emplace_back(link.get(), link->StartClose());
    }
  }
  for (const auto& [link, goodbye] : goodbyes) (void)link->Wait(*goodbye, deadline);
  // The loop serves the links until the last goodbye is answered.
  if (loop_ != nullptr) loop_->Stop();
  links_.reset();  // before the streams
}

std::vector<int> TcpTransport::Peers() const {
  std::vector<int> peers;
  for (int peer = 0; peer < size_; ++peer) {
    const auto& chosen = options_.peers;
    if (peer == rank_) continue;
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), peer) == chosen.end()) continue;
    peers.push_back(peer);
  }
  return peers;
}

Status TcpTransport::Connect(const ConnectContext& context) {
  const int stripes = options_.connections_per_stream;
  if (streams_ < 1 || stripes < 1 || streams_ * stripes > kLinksMax) {
    return InvalidArgument("rank " + std::to_string(rank_) + ": " + std::to_string(streams_) +
                           " streams of " + std::to_string(stripes) +
                           " TCP connections; there must be 1 to " + std::to_string(kLinksMax) +
                           " connections for each pair of ranks");
  }
  TcpLinks::Plan plan{.purpose = options_.purpose,
                      .what = "TCP",
                      .peers = Peers(),
                      .stream_of_link = {},
                      .on_news = {},
                      .wake_ticker = [this] { loop_->Wake(); }};
  for (int stream = 0; stream < streams_; ++stream) {
    RABIT_ASSIGN_OR_RETURN(auto opened, TcpStream::Open(options_.spin));
    plan.stream_of_link.insert(plan.stream_of_link.end(), static_cast<size_t>(stripes),
                               opened.get());
    tcp_streams_.push_back(std::move(opened));
  }
  links_ = std::make_unique<TcpLinks>(context, options_, std::move(plan));
  RABIT_ASSIGN_OR_RETURN(loop_, IoLoop::Start([this] { return Tick(); }));
  for (const auto& stream : tcp_streams_) RABIT_RETURN_IF_ERROR(stream->Attach(*loop_));
  return links_->Connect(context);
}

Status TcpTransport::CheckArguments(int peer, Tag tag) const {
  if (links_->With(peer).empty()) {
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
  return links_->With(peer).subspan(static_cast<size_t>(StreamOf(tag)) * stripes, stripes);
}

Operation TcpTransport::Send(int peer, Tag tag, ConstBytes buffer) {
  return Start(peer, tag, buffer, false);
}

Operation TcpTransport::SendAnswered(int peer, Tag tag, ConstBytes buffer) {
  return Start(peer, tag, buffer, true);
}

Operation TcpTransport::Start(int peer, Tag tag, ConstBytes buffer, bool is_answered) {
  if (Status status = CheckArguments(peer, tag); !status.ok()) return Operation(std::move(status));
  const auto links = LinksFor(peer, tag);
  // An answer of another size may come over other links than the message has gone.
  is_answered = is_answered && links.size() == 1;
  const auto start_on = [&](TcpLink& link) {
    auto transfer = link.Send(tag, buffer, is_answered);
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

TransportCounters TcpTransport::counters() const { return links_->counters(); }

// The I/O thread.
Deadline TcpTransport::Tick() {
  const Deadline now = std::chrono::steady_clock::now();
  Deadline next = links_->Tick(now);
  for (const auto& stream : tcp_streams_) next = std::min(next, stream->OnTick(now));
  return next;
}

}  // namespace

Result<std::unique_ptr<Transport>> ConnectTcpTransport(const ConnectContext& context,
                                                       const TcpOptions& options) {
  auto transport = std::make_unique<TcpTransport>(context, options);
  RABIT_RETURN_IF_ERROR(transport->Connect(context));
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace rabit
