// ForkStore: a store for ranks that are processes forked from one test or benchmark.
#pragma once

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "rendezvous/store.h"

namespace rabit::testing {

// Lies in memory that is shared across fork().  Keys are written once and never changed; a process
// that is killed inside Set leaves one entry that nobody sees.  At most 64 entries.
class ForkStore final : public Store {
 public:
  ForkStore()
      : board_(new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0)) Board) {}
  ~ForkStore() override { munmap(board_, sizeof(Board)); }
  ForkStore(const ForkStore&) = delete;

  Status Set(std::string_view key, std::string_view value) override {
    const size_t index = board_->used.fetch_add(1);
    if (index >= board_->entries.size() || key.size() >= kTextBytes || value.size() >= kTextBytes) {
      return ResourceExhausted("the test's store is full at key '" + std::string(key) + "'");
    }
    Entry& entry = board_->entries[index];
    key.copy(entry.key.data(), key.size());
    value.copy(entry.value.data(), value.size());
    entry.value_bytes = value.size();
    entry.is_set.store(1, std::memory_order_release);
    return Status();
  }
  Result<Versioned> Watch(std::string_view key, uint64_t seen, Deadline deadline) override {
    if (seen != 0) return Unsupported("the test's store never changes a key");
    do {
      for (const Entry& entry : board_->entries) {
        if (entry.is_set.load(std::memory_order_acquire) == 0 || key != entry.key.data()) continue;
        return Versioned{1, std::string(entry.value.data(), entry.value_bytes)};
      }
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < deadline);
    return TimedOut("the test's store has no key '" + std::string(key) + "'");
  }
  Result<Swap> CompareAndSet(std::string_view key, uint64_t, std::string_view) override {
    return Unsupported("the test's store sets keys without a look ('" + std::string(key) + "')");
  }

 private:
  static constexpr size_t kTextBytes = 256;
  struct Entry {
    std::atomic<int> is_set{0};
    size_t value_bytes = 0;
    std::array<char, kTextBytes> key{};
    std::array<char, kTextBytes> value{};
  };
  struct Board {
    std::atomic<size_t> used{0};
    std::array<Entry, 64> entries;
  };
  Board* board_;
};

}  // namespace rabit::testing
