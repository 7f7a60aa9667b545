#include "base/home_core.h"

#include <sched.h>

#include <array>
#include <cstddef>

namespace rabit {
namespace {

// To be sent costs some 20 us, and the kernel may have its reasons.
constexpr std::chrono::milliseconds kPause{1};
constexpr size_t kMaskBytes = 1024;  // 8,192 processors

}  // namespace

HomeCore HomeCore::Of(int index, const HostCores& cores, const Processors& processors) {
  const bool may_use_all = static_cast<int>(processors.size()) == cores.total;
  const bool are_even = cores.ranks > cores.total && cores.ranks % cores.total == 0;
  if (!are_even || cores.least < cores.total || !may_use_all) return HomeCore();
  const int at = index * cores.total / cores.ranks;
  return HomeCore(processors[static_cast<size_t>(at)], cores.total);
}

bool HomeCore::IsDue(int core, Deadline now) {
  if (core_ < 0 || core == core_) return false;
  if (now - sent_.load(std::memory_order_relaxed) < kPause) return false;
  sent_.store(now, std::memory_order_relaxed);
  return true;
}

void HomeCore::Return(Deadline now) {
  if (IsDue(::sched_getcpu(), now)) Send();
}

void HomeCore::Send() const {
  alignas(cpu_set_t) std::array<std::byte, kMaskBytes> allowed{};
  alignas(cpu_set_t) std::array<std::byte, kMaskBytes> home{};
  auto* const all = reinterpret_cast<cpu_set_t*>(allowed.data());
  auto* const one = reinterpret_cast<cpu_set_t*>(home.data());
  if (::sched_getaffinity(0, kMaskBytes, all) != 0) return;
  if (CPU_COUNT_S(kMaskBytes, all) != total_ || !CPU_ISSET_S(core_, kMaskBytes, all)) return;
  CPU_SET_S(core_, kMaskBytes, one);
  // Speed only: where the system refuses, the thread stays where it is.
  if (::sched_setaffinity(0, kMaskBytes, one) == 0) ::sched_setaffinity(0, kMaskBytes, all);
}

}  // namespace rabit
