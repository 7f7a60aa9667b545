#include "transport/shm/single_copy_trial.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

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

SingleCopyTrial::SingleCopyTrial(uint64_t value)
    : value_(value), memory_(new std::byte[kBytes]), copy_(new std::byte[kBytes]) {
  std::memset(memory_.get(), 1, kBytes);
  std::memset(copy_.get(), 1, kBytes);
  std::memcpy(memory_.get(), &value_, sizeof value_);
}

Status SingleCopyTrial::TryRead(int pid, uint64_t address, uint64_t value) {
  uint64_t seen = 0;
  if (ReadMemory(pid, address, copy_.get(), sizeof seen) != sizeof seen) {
    return Unsupported("process_vm_readv: " + ErrnoText(errno));
  }
  std::memcpy(&seen, copy_.get(), sizeof seen);
  if (seen == value) return Status();
  return Unsupported("process number " + std::to_string(pid) +
                     " is another process here; the ranks run in different containers");
}

bool SingleCopyTrial::IsFaster(int pid, uint64_t address) {
  if (is_faster_) return *is_faster_;
  bool has_failed = false;
  const auto read = Fastest([&] {
    has_failed |= ReadMemory(pid, address, copy_.get(), kBytes) != static_cast<ssize_t>(kBytes);
  });
  const auto copy = Fastest([&] {
    std::memcpy(copy_.get(), memory_.get(), kBytes);
    asm volatile("" : : "r"(copy_.get()) : "memory");  // or the copy is optimised away
  });
  is_faster_ = !has_failed && read < 2 * copy;
  return *is_faster_;
}

}  // namespace rabit
