#include "rendezvous/board.h"

namespace rabit {
namespace {

constexpr size_t kEntryOverheadBytes = 128;  // tree node and two string headers, about

}  // namespace

Status CheckStoreKey(std::string_view key) {
  if (!key.empty() && key.size() <= kStoreKeyBytesMax) return {};
  return InvalidArgument("a store key has " + std::to_string(key.size()) + " bytes; use 1 to " +
                         std::to_string(kStoreKeyBytesMax));
}

Status NotSetInTime(std::string_view key, uint64_t seen) {
  if (seen == 0) {
    return TimedOut("store key '" + std::string(key) +
                    "' was not set before the deadline: not every rank has started, or called "
                    "init()");
  }
  return TimedOut("store key '" + std::string(key) + "' has version " + std::to_string(seen) +
                  " still: nobody has set it again before the deadline; wait longer, or see " +
                  "whether the process that sets it still runs");
}

Status Board::Set(std::string_view key, std::string_view value) {
  RABIT_RETURN_IF_ERROR(CheckStoreKey(key));
  if (value.size() > kStoreValueBytesMax) {
    return InvalidArgument("the value of store key '" + std::string(key) + "' has " +
                           std::to_string(value.size()) + " bytes; a store takes at most " +
                           std::to_string(kStoreValueBytesMax));
  }
  // The board has no lock: the store server's thread, or the lock of a store inside one process,
  // keeps others out.
  auto found = entries_.find(key);
  const size_t old_bytes = found == entries_.end() ? 0 : found->second.value.size();
  const size_t new_key_bytes = found == entries_.end() ? key.size() + kEntryOverheadBytes : 0;
  if (total_bytes_ - old_bytes + value.size() + new_key_bytes > total_bytes_max_) {
    return ResourceExhausted("the store is full: it holds " + std::to_string(total_bytes_) +
                             " of " + std::to_string(total_bytes_max_) + " bytes, so key '" +
                             std::string(key) + "' was not set");
  }
  total_bytes_ = total_bytes_ - old_bytes + value.size() + new_key_bytes;
  if (found == entries_.end()) found = entries_.emplace(std::string(key), Versioned{}).first;
  // A version is never 0 and never falls while the key is there, so a watcher that names the one it
  // has seen misses no later one.
  ++found->second.version;
  found->second.value = value;
  return {};
}

Result<Swap> Board::CompareAndSet(std::string_view key, uint64_t version, std::string_view value) {
  const Versioned* const held = Find(key);
  // Version 0 stands for a key that is not set, so "set it if nobody has" is one question.
  if ((held == nullptr ? 0 : held->version) != version) {
    return Swap{false, held == nullptr ? Versioned{} : *held};
  }
  RABIT_RETURN_IF_ERROR(Set(key, value));
  return Swap{true, *Find(key)};
}

const Versioned* Board::Find(std::string_view key) const {
  auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

void Board::Forget(std::string_view prefix, std::string_view kept) {
  for (auto entry = entries_.lower_bound(prefix);
       entry != entries_.end() && entry->first.starts_with(prefix);) {
    if (entry->first == kept) {
      ++entry;
      continue;
    }
    // The same sum as in Set: with another one the board would be full, or have room, for good.
    total_bytes_ -= entry->first.size() + kEntryOverheadBytes + entry->second.value.size();
    entry = entries_.erase(entry);
  }
}

}  // namespace rabit
