#include "transport/shm/single_copy_trial.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "base/random.h"
#include "base/socket.h"

namespace rabit {
namespace {

constexpr int kRepeats = 5;

ssize_t ReadMemory(int pid, uint64_t address, std::byte* to, size_t bytes) {
  const iovec local{to, bytes};
  const iovec remote{reinterpret_cast<void*>(address), bytes};
  return process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

template <class Body>
std::chrono::nanoseconds Fastest(Body body) {
  auto fastest = std::chrono::nanoseconds::max();
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    fastest = std::min<std::chrono::nanoseconds>(fastest, std::chrono::steady_clock::now() - start);
  }
  return fastest;
}

}  // namespace

Result<SingleCopyTrial*> SingleCopyTrial::OfThisProcess() {
  // One trial for the process and not for each engine: engines of one process would measure while
  // others use the memory.
  static Mutex mutex;
  static pid_t process = 0;
  static SingleCopyTrial* trial = nullptr;
  const MutexLock lock(mutex);
  if (process != getpid()) {  // A forked child has its parent's, and the parent's value.
    uint64_t value = 0;
    RABIT_RETURN_IF_ERROR(FillRandom(Bytes(reinterpret_cast<std::byte*>(&value), sizeof value)));
    // It is never freed: peers read its memory at any time, through an address that they have
    // heard.
    trial = new SingleCopyTrial(value);
    process = getpid();
  }
  return trial;
}

SingleCopyTrial::SingleCopyTrial(uint64_t value) : value_(value), memory_(new std::byte[kBytes]) {
  std::memset(memory_.get(), 1, kBytes);
  std::memcpy(memory_.get(), &value_, sizeof value_);
}

Status SingleCopyTrial::TryRead(int pid, uint64_t address, uint64_t value) const {
  uint64_t seen = 0;
  if (ReadMemory(pid, address, reinterpret_cast<std::byte*>(&seen), sizeof seen) != sizeof seen) {
    return Unsupported("process_vm_readv: " + ErrnoText(errno));
  }
  // A number of a process means another process in another container, where the address may even be
  // readable.
  if (seen == value) return Status();
  return Unsupported("process number " + std::to_string(pid) +
                     " is another process here; the ranks run in different containers");
}

bool SingleCopyTrial::IsFaster(int pid, uint64_t address) {
  const MutexLock lock(mutex_);
  if (!is_faster_) is_faster_ = Measure(pid, address);
  return *is_faster_;
}

bool SingleCopyTrial::MayBeFaster() {
  const MutexLock lock(mutex_);
  return is_faster_.value_or(true);
}

bool SingleCopyTrial::Measure(int pid, uint64_t address) const {
  const std::unique_ptr<std::byte[]> to(new std::byte[kBytes]);
  std::memset(to.get(), 1, kBytes);
  bool has_failed = false;
  const auto read = Fastest([&] {
    has_failed |= ReadMemory(pid, address, to.get(), kBytes) != static_cast<ssize_t>(kBytes);
  });
  const auto copy = Fastest([&] {
    std::memcpy(to.get(), memory_.get(), kBytes);
    asm volatile("" : : "r"(to.get()) : "memory");  // or the copy is optimised away
  });
  // A message through the ring is copied twice, in and out; a single copy has to beat both
  // together.
  return !has_failed && read < 2 * copy;
}

}  // namespace rabit
