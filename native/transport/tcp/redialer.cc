#include "transport/tcp/redialer.h"

#include <algorithm>
#include <tuple>

namespace rabit {
namespace {

using namespace std::chrono_literals;

constexpr auto kSliceMax = 1000ms;  // two round trips, to the other side of the earth as well
constexpr auto kPause = 20ms;       // between two tries, so that a refused one does not spin
// What a firewall refuses once it lets through at the next try; two of them are the time in which
// the loss of a process is noticed.
constexpr auto kRefusedPause = 10ms;
// A connection that the peer makes anew at once is there by then.
constexpr auto kKnockAfter = 5ms;
// A process that ends may close its connections a little before its port.
constexpr auto kKnockAgain = 10ms;
// Who was asked may end before it dials.
constexpr auto kKnockAfterAsking = 100ms;
// The peer that has to dial gets this long, the first time and after it was asked.
constexpr auto kPatience = 40ms;
constexpr auto kAskAgain = 500ms;
// A firewall may refuse once what it lets through later.
constexpr int kRefusalsMax = 2;

}  // namespace

void Redialer::Request(TcpLink& link) {
  MutexLock lock(mutex_);
  if (wants_stop_) return;
  const bool is_known = std::any_of(waiting_.begin(), waiting_.end(),
                                    [&](const Broken& each) { return each.link == &link; });
  if (!is_known) {
    const bool is_dialler = link.peer() < rank_;
    waiting_.push_back({&link, After(is_dialler ? 0ms : kKnockAfter), After(kPatience)});
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.NotifyAll();
}

void Redialer::Stop() {
  {
    MutexLock lock(mutex_);
    wants_stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::deque<Redialer::Broken>::iterator Redialer::Next(Deadline now) {
  auto first = waiting_.end();
  std::tuple<bool, int, Deadline> least;
  for (auto broken = waiting_.begin(); broken != waiting_.end(); ++broken) {
    const bool is_later = broken->due > now;
    const auto found = unanswered_.find(broken->link->peer());
    const int tries = is_later || found == unanswered_.end() ? 0 : found->second;
    const std::tuple rank(is_later, tries, broken->due);
    if (first != waiting_.end() && rank >= least) continue;
    first = broken;
    least = rank;
  }
  return first;
}

void Redialer::Run() {
  for (;;) {
    Broken next;
    {
      MutexLock lock(mutex_);
      for (;;) {
        if (wants_stop_) return;
        const Deadline now = std::chrono::steady_clock::now();
        const auto first = Next(now);
        const Deadline due = first == waiting_.end() ? After(1h) : first->due;
        if (due <= now) {
          next = *first;
          waiting_.erase(first);
          break;
        }
        changed_.WaitUntil(mutex_, due);
      }
    }
    if (!Try(next)) continue;
    MutexLock lock(mutex_);
    waiting_.push_back(next);
  }
}

bool Redialer::Try(Broken& broken) {
  TcpLink& link = *broken.link;
  const std::optional<Deadline> end = link.outage_deadline();
  if (!end || link.is_connected()) return false;
  const bool is_dialler = link.peer() < rank_;
  // A knock costs less than a dial, and comes first, however late this thread is.
  const bool is_early = std::chrono::steady_clock::now() < broken.ask_at || !broken.was_knocked;
  if (!is_dialler && (is_early || broken.refusals > 0)) return TryKnocking(broken);
  Result<UniqueFd> fd = dial_(link, std::min(*end, After(broken.slice)));
  {
    MutexLock lock(mutex_);
    int& unanswered = unanswered_[link.peer()];
    unanswered = fd.status().code() == Code::kTimedOut ? unanswered + 1 : 0;
  }
  broken.due = After(kPause);
  if (fd.ok()) {
    broken.refusals = 0;
    broken.due = After(kKnockAfterAsking);
    broken.ask_at = After(kAskAgain);
    broken.was_asked = true;
    if (is_dialler) link.Attach(*std::move(fd));
    return !is_dialler;
  }
  if (fd.status().code() == Code::kPeerLost) return MayPass(broken);
  if (fd.status().code() == Code::kAborted) {
    link.Lose(fd.status().message());
    return false;
  }
  broken.refusals = 0;
  if (fd.status().code() == Code::kTimedOut) broken.slice = std::min(2 * broken.slice, kSliceMax);
  // The two have met before: what looks like a stranger's answer is one that changed on the way.
  link.NoteBrokenBy(fd.status().message());
  return true;
}

bool Redialer::TryKnocking(Broken& broken) {
  broken.was_knocked = true;
  const Deadline end = After(broken.slice);
  // Too late to ask first, it has the time of a try.
  const bool is_early = std::chrono::steady_clock::now() < broken.ask_at;
  if (knock_(*broken.link, is_early ? std::min(broken.ask_at, end) : end)) return MayPass(broken);
  broken.refusals = 0;
  broken.due = std::min(broken.ask_at, After(broken.was_asked ? kKnockAfterAsking : kKnockAgain));
  return true;
}

bool Redialer::MayPass(Broken& broken) {
  broken.due = After(kRefusedPause);
  const int refusals_max = is_here_(*broken.link) ? 1 : kRefusalsMax;
  if (++broken.refusals < refusals_max) return true;
  broken.link->Lose("its port refuses connections: its process has ended; see its output");
  return false;
}

}  // namespace rabit
