#include "engine/caller_watch.h"

#include "base/clock.h"

namespace rabit {
namespace {

std::atomic<uint64_t> last_number{0};

}  // namespace

CallerWatch::CallerWatch() : number_(last_number.fetch_add(1) + 1) {}

CallerWatch::Caller* CallerWatch::Mine(bool is_new) {
  struct Kept {
    uint64_t number = 0;
    Caller* caller = nullptr;
  };
  thread_local Kept kept;
  if (kept.number == number_) return kept.caller;
  MutexLock lock(mutex_);
  const auto found = callers_.find(std::this_thread::get_id());
  if (found == callers_.end() && !is_new) return nullptr;
  if (found != callers_.end()) {
    kept = {number_, found->second.get()};
  } else {
    auto& mine = callers_[std::this_thread::get_id()] = std::make_unique<Caller>();
    kept = {number_, mine.get()};
  }
  return kept.caller;
}

void CallerWatch::OnSubmit() {
  submissions_.fetch_add(1, std::memory_order_relaxed);
  Mine(true)->waits_for.store(0, std::memory_order_relaxed);
}

void CallerWatch::OnWait(Handle handle) {
  Caller* const mine = Mine(false);
  if (mine == nullptr) return;
  mine->away_since_ns.store(0, std::memory_order_relaxed);
  mine->waits_for.store(handle.value, std::memory_order_release);
}

void CallerWatch::OnWaited(bool comes_back) {
  Caller* const mine = Mine(false);
  if (mine == nullptr) return;
  if (comes_back) {
    mine->away_since_ns.store(NowNs(), std::memory_order_relaxed);
  } else {
    mine->waits_for.store(0, std::memory_order_relaxed);
  }
}

}  // namespace rabit
