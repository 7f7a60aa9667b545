#include "transport/tcp/tcp_links.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace rabit {
namespace {

// How often the progress of each link is looked at, in a progress_timeout.
constexpr int kChecksPerTimeout = 6;
// Links, of one peer or of several.
constexpr size_t kDialsAtOnce = 12;

std::string_view HostOf(std::string_view address) { return address.substr(0, address.rfind(':')); }

}  // namespace

TcpLinks::TcpLinks(const ConnectContext& context, const TcpOptions& options, Plan plan)
    : rank_(context.rank),
      size_(context.size),
      epoch_(context.epoch),
      members_(context.members),
      keeper_(context.keeper),
      secret_(context.secret),
      listener_(context.listener),
      options_(options),
      plan_(std::move(plan)),
      addresses_(static_cast<size_t>(context.size)),
      links_(static_cast<size_t>(context.size)),
      heartbeat_(options.heartbeat_timeout, std::chrono::steady_clock::now()),
      redialer_(
          context.rank,
          [this](const TcpLink& link, Deadline deadline) {
            Result<UniqueFd> fd =
                DialOnce(AddressOf(link, link.peer()), secret_, GreetingFor(link.index()),
                         members_.Of(link.peer()), deadline);
            // The interface may be dead, and the peer have another one.  One that refuses works.
            if (!fd.ok() && fd.status().code() != Code::kPeerLost) ++skipped_[&link];
            return fd;
          },
          [this](const TcpLink& link, Deadline deadline) {
            return IsRefused(AddressOf(link, link.peer()), deadline);
          },
          [this](const TcpLink& link) {
            // Compared as they are published: the listener itself may be at any address.
            return HostOf(AddressOf(link, link.peer())) == HostOf(AddressOf(link, rank_));
          }) {
  const int stripes = options_.connections_per_stream;
  for (const int peer : plan_.peers) {
    for (int index = 0; index < static_cast<int>(plan_.stream_of_link.size()); ++index) {
      const Stripe stripe{index % stripes, stripes, options_.stripe_bytes_min};
      // All links exist from here to the end, so that threads may use them without a lock.
      links_[static_cast<size_t>(peer)].push_back(std::make_unique<TcpLink>(
          TcpLink::Id{rank_, peer, index, stripe, static_cast<uint32_t>(epoch_),
                      keeper_ != nullptr},
          options_, counters_, *plan_.stream_of_link[static_cast<size_t>(index)], *this));
    }
  }
}

TcpLinks::~TcpLinks() { StopConnecting(); }

void TcpLinks::StopConnecting() {
  // The handler is removed first: it may run now, and Attach links that are about to go.
  // RemoveHandler waits for it.
  if (is_connecting_) listener_.RemoveHandler(plan_.purpose);
  is_connecting_ = false;
  redialer_.Stop();
}

Status TcpLinks::Connect(const ConnectContext& context) {
  addresses_[static_cast<size_t>(rank_)] =
      context.addresses.empty() ? listener_.address()
                                : context.addresses[static_cast<size_t>(rank_)];
  // Whoever dials this rank waits in the listener until the addresses are known.
  for (const int peer : plan_.peers) {
    if (!context.addresses.empty()) {
      addresses_[static_cast<size_t>(peer)] = context.addresses[static_cast<size_t>(peer)];
      continue;
    }
    Result<std::string> address =
        context.store.Get(context.KeyOf("address", peer), context.deadline);
    if (!address.ok()) {
      // Who has failed may be another one than whose address is missing.
      const int known = address.status().culprit();
      return Status(address.status()).WithCulprit(known >= 0 ? known : peer);
    }
    addresses_[static_cast<size_t>(peer)] = *std::move(address);
  }
  // From here on the listener's thread may call Accept while this one dials; links take care of
  // both.
  listener_.SetHandler(plan_.purpose, [this](AuthenticatedPeer peer) { Accept(std::move(peer)); });
  is_connecting_ = true;
  AttachKept();
  // Every rank begins with another one: whoever all dialled at once would drop some of them.
  std::vector<TcpLink*> missing;
  for (auto lower = std::lower_bound(plan_.peers.begin(), plan_.peers.end(), rank_);
       lower != plan_.peers.begin();) {
    // Of two ranks the higher one dials, so that the two do not connect to each other twice.
    for (const auto& link : links_[static_cast<size_t>(*--lower)]) {
      if (!link->is_connected()) missing.push_back(link.get());
    }
    if (missing.size() < kDialsAtOnce && lower != plan_.peers.begin()) continue;
    RABIT_RETURN_IF_ERROR(DialAllOf(missing, context));
    missing.clear();
  }
  return WaitUntilReady(context);
}

Status TcpLinks::DialAllOf(std::span<TcpLink* const> links, const ConnectContext& context) {
  std::vector<DialTarget> targets;
  for (const TcpLink* const link : links) {
    const std::string& addresses = addresses_[static_cast<size_t>(link->peer())];
    targets.push_back({std::string(AddressOfLink(addresses, link->index())),
                       GreetingFor(link->index()), members_.Of(link->peer())});
  }
  std::vector<Result<UniqueFd>> made =
      DialAll(targets, secret_, context.deadline, [&context] { return context.Look(); });
  for (size_t i = 0; i < links.size(); ++i) {
    if (!made[i].ok()) {
      const int known = made[i].status().culprit();
      return Status(made[i].status()).WithCulprit(known >= 0 ? known : links[i]->peer());
    }
    links[i]->Attach(*std::move(made[i]));
  }
  return Status();
}

// What an engine before this one has left.  One end may have lost what the other has kept: then the
// connection breaks, and is made anew as any other.
void TcpLinks::AttachKept() {
  if (keeper_ == nullptr) return;
  for (const int peer : plan_.peers) {
    for (const auto& link : links_[static_cast<size_t>(peer)]) {
      if (link->is_connected()) continue;  // the peer has dialled
      auto kept = keeper_->Take(plan_.purpose, members_.Of(peer), link->index());
      if (kept) link->Attach(*std::move(kept));
    }
  }
}

void TcpLinks::Retire() {
  if (keeper_ == nullptr) return;
  const Status why = Aborted("rank " + std::to_string(rank_) + " has closed its transport");
  for (const int peer : plan_.peers) {
    for (const auto& link : links_[static_cast<size_t>(peer)]) {
      // The pool owns the connection from now on, and the next engine goes on with it.
      auto kept = link->Retire(why);
      if (kept) keeper_->Keep(plan_.purpose, members_.Of(peer), link->index(), *std::move(kept));
    }
  }
}

TransportCounters TcpLinks::counters() const {
  TransportCounters counters;
  counters.bytes_sent = counters_.bytes_sent.load();
  counters.bytes_received = counters_.bytes_received.load();
  counters.messages_sent = counters_.messages_sent.load();
  counters.messages_received = counters_.messages_received.load();
  counters.frames_corrupt = counters_.frames_corrupt.load();
  counters.frames_resent = counters_.frames_resent.load();
  counters.connections_restored = counters_.connections_restored.load();
  counters.frames_late = counters_.frames_late.load();
  return counters;
}

std::string_view TcpLinks::AddressOf(const TcpLink& link, int rank) const {
  const auto skipped = skipped_.find(&link);
  return AddressOfLink(addresses_[static_cast<size_t>(rank)],
                       link.index() + (skipped == skipped_.end() ? 0 : skipped->second));
}

// The listener's thread.  Also how a broken link comes back.
void TcpLinks::Accept(AuthenticatedPeer peer) {
  const int rank = members_.RankOf(peer.greeting.rank);
  const auto links = With(rank);
  // The greeting is authenticated, but the rank that sent it may have other settings.
  if (peer.greeting.stream < 0 || static_cast<size_t>(peer.greeting.stream) >= links.size()) return;
  TcpLink& link = *links[static_cast<size_t>(peer.greeting.stream)];
  if (rank > rank_) return link.Attach(std::move(peer.fd));
  link.Renew(std::chrono::steady_clock::now());  // this rank is the one that dials
}

Status TcpLinks::WaitUntilReady(const ConnectContext& context) {
  const auto is_ready = [this](int peer) { return IsReady(peer); };
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (std::all_of(plan_.peers.begin(), plan_.peers.end(), is_ready)) return Status();
      // The first failure of any peer ends the start: waiting longer for the others would only hide
      // the cause.
      for (const auto& [peer, why] : failures_) return why;
      const Deadline next = std::min(context.deadline, After(kStartLookInterval));
      if (!connected_.WaitUntil(mutex_, next) &&
          std::chrono::steady_clock::now() >= context.deadline) {
        return Missing();
      }
    }
    RABIT_RETURN_IF_ERROR(context.Look());
  }
}

bool TcpLinks::IsReady(int peer) const {
  const auto& links = links_[static_cast<size_t>(peer)];
  return std::all_of(links.begin(), links.end(), [](const auto& link) { return link->is_ready(); });
}

Status TcpLinks::Missing() const {
  std::string missing;
  int first_missing = -1;
  for (const int peer : plan_.peers) {
    if (IsReady(peer)) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(peer);
    if (first_missing < 0) first_missing = peer;
  }
  return TimedOut("rank " + std::to_string(rank_) + ": no " + plan_.what +
                  " connection with rank(s) " + missing +
                  " before the deadline; are they running, and does a firewall " +
                  "between the hosts let their ports through?")
      .WithCulprit(first_missing);
}

void TcpLinks::Abort(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (is_aborted_) return;
    is_aborted_ = true;
  }
  for (const auto& links : links_) {
    // Without mutex_: a link takes its own locks and calls back here, where mutex_ is taken.
    for (const auto& link : links) link->Abort(why);
  }
}

void TcpLinks::OnBroken(int peer, int index) {
  TcpLink& link = *links_[static_cast<size_t>(peer)][static_cast<size_t>(index)];
  {
    MutexLock lock(mutex_);
    // The link is locked here; mutex_ is the innermost lock and is never held while a link is
    // called.
    broken_.insert(&link);
  }
  redialer_.Request(link);
  plan_.wake_ticker();
}

void TcpLinks::OnFailed(int peer, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!is_aborted_) failures_.emplace_back(peer, why);
    connected_.NotifyAll();
  }
  plan_.wake_ticker();
  if (plan_.on_news) plan_.on_news();
}

void TcpLinks::OnConnected() {
  // Only the last hello of the start wakes the thread that waits for all of them.
  if (hellos_.fetch_add(1) + 1 < plan_.peers.size() * plan_.stream_of_link.size()) return;
  MutexLock lock(mutex_);
  connected_.NotifyAll();
}

void TcpLinks::OnMessage() {
  if (plan_.on_news) plan_.on_news();
}

Deadline TcpLinks::Tick(Deadline now) {
  std::vector<std::pair<int, Status>> failures;
  std::vector<TcpLink*> broken;
  {
    MutexLock lock(mutex_);
    // A failure of one link of a peer is a failure of all of them: the rank is lost.
    failures = failures_;
    broken.assign(broken_.begin(), broken_.end());
    broken_.clear();  // before the look, so that a link that breaks meanwhile is not forgotten
  }
  for (const auto& [peer, why] : failures) {
    for (const auto& link : links_[static_cast<size_t>(peer)]) link->Fail(why);
  }
  Deadline next = Beat(now);
  for (TcpLink* link : broken) {
    link->CheckOutage(now);
    const std::optional<Deadline> end = link->outage_deadline();
    if (!end) continue;
    next = std::min(next, *end);
    MutexLock lock(mutex_);
    broken_.insert(link);
  }
  if (options_.progress_timeout.count() == 0) return next;
  if (now >= next_check_) {
    next_check_ = now + options_.progress_timeout / kChecksPerTimeout;
    for (const int peer : plan_.peers) {
      for (const auto& link : links_[static_cast<size_t>(peer)]) link->CheckProgress(now);
    }
  }
  return std::min(next, next_check_);
}

// On one link of each peer, since one thread serves them all.  Reading first acknowledges with the
// beat what has come, and lets no late reader accuse anybody.
Deadline TcpLinks::Beat(Deadline now) {
  const bool is_due = heartbeat_.IsDue(now);
  if (!heartbeat_.MustLook(now)) return heartbeat_.next(now);
  for (const int peer : plan_.peers) {
    TcpLink& link = *links_[static_cast<size_t>(peer)].front();
    if (is_due) {
      link.ReadNow();
      link.Beat();
    }
    // This process itself was stopped or got no core: the silence of its peers says nothing.
    if (!heartbeat_.IsSteady(now)) {
      link.set_last_heard(now);
    } else if (link.is_ready() || link.outage_deadline()) {
      heartbeat_.Expect(link.CheckSilence(now, heartbeat_));
    }
  }
  return heartbeat_.next(now);
}

}  // namespace rabit
