#include "transport/tcp/redialer.h"

#include <algorithm>

namespace rabit {
namespace {

using namespace std::chrono_literals;

constexpr auto kSlice = 250ms;
constexpr auto kPause = 20ms;  // between two tries, so that a refused one does not spin

}  // namespace

void Redialer::Request(TcpLink& link) {
  MutexLock lock(mutex_);
  if (wants_stop_) return;
  if (std::find(waiting_.begin(), waiting_.end(), &link) == waiting_.end()) {
    waiting_.push_back(&link);
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

void Redialer::Run() {
  for (;;) {
    TcpLink* link = nullptr;
    {
      MutexLock lock(mutex_);
      while (waiting_.empty() && !wants_stop_) changed_.WaitUntil(mutex_, After(1h));
      if (wants_stop_) return;
      link = waiting_.front();
      waiting_.pop_front();
    }
    const std::optional<Deadline> end = link->outage_deadline();
    if (!end || link->is_connected()) continue;
    Result<UniqueFd> fd = dial_(*link, std::min(*end, After(kSlice)));
    if (fd.ok()) {
      link->Attach(std::move(*fd));
      continue;
    }
    if (fd.status().code() != Code::kTimedOut && fd.status().code() != Code::kPeerLost) {
      link->Fail(fd.status().WithCulprit(link->peer()));
      continue;
    }
    MutexLock lock(mutex_);
    waiting_.push_back(link);
    const Deadline next = After(kPause);
    while (!wants_stop_ && changed_.WaitUntil(mutex_, next)) {
    }
  }
}

}  // namespace rabit
