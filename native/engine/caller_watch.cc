#include "engine/caller_watch.h"

#include "base/clock.h"

namespace rabit {
namespace {

// A number tells this engine's entry in thread_local memory from that of an engine that ended
// before.
std::atomic<uint64_t> last_number{0};

}  // namespace

CallerWatch::CallerWatch() : number_(last_number.fetch_add(1) + 1) {}

CallerWatch::Caller* CallerWatch::Mine(bool is_new) {
  struct Kept {
    uint64_t number = 0;
    Caller* caller = nullptr;
  };
  // The lock below is taken once for each thread and engine; every later call finds its entry here.
  thread_local Kept kept;
  // An entry lives as long as the engine, so the pointer stays valid while the number is this
  // engine's.
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
  // The thread does something, so it is not stuck.  Relaxed is enough: a stale look costs one more
  // question of rank 0.
  Mine(true)->waits_for.store(0, std::memory_order_relaxed);
}

void CallerWatch::OnWait(Handle handle) {
  Caller* const mine = Mine(false);
  if (mine == nullptr) return;
  mine->away_since_ns.store(0, std::memory_order_relaxed);
  // The engine thread reads it with acquire and then looks at away_since_ns, which must not be
  // older.
  mine->waits_for.store(handle.value, std::memory_order_release);
}

void CallerWatch::OnWaited(bool comes_back) {
  Caller* const mine = Mine(false);
  if (mine == nullptr) return;
  if (comes_back) {
    // A wait in slices leaves the engine between two of them; the caller counts as waiting if it is
    // back soon.
    mine->away_since_ns.store(NowNs(), std::memory_order_relaxed);
  } else {
    mine->waits_for.store(0, std::memory_order_relaxed);
  }
}

}  // namespace rabit
