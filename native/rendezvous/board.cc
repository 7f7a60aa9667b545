#include "rendezvous/board.h"

#include <charconv>

namespace rabit {
namespace {

constexpr size_t kEntryOverheadBytes = 128;  // tree node and two string headers, about

}  // namespace

Status CheckStoreKey(std::string_view key) {
  if (!key.empty() && key.size() <= kStoreKeyBytesMax) return {};
  return InvalidArgument("a store key has " + std::to_string(key.size()) + " bytes; use 1 to " +
                         std::to_string(kStoreKeyBytesMax));
}

Status Board::Set(std::string_view key, std::string_view value) {
  RABIT_RETURN_IF_ERROR(CheckStoreKey(key));
  if (value.size() > kStoreValueBytesMax) {
    return InvalidArgument("the value of store key '" + std::string(key) + "' has " +
                           std::to_string(value.size()) + " bytes; a store takes at most " +
                           std::to_string(kStoreValueBytesMax));
  }
  auto found = entries_.find(key);
  const size_t old_bytes = found == entries_.end() ? 0 : found->second.size();
  const size_t new_key_bytes = found == entries_.end() ? key.size() + kEntryOverheadBytes : 0;
  if (total_bytes_ - old_bytes + value.size() + new_key_bytes > total_bytes_max_) {
    return ResourceExhausted("the store is full: it holds " + std::to_string(total_bytes_) +
                             " of " + std::to_string(total_bytes_max_) + " bytes, so key '" +
                             std::string(key) + "' was not set");
  }
  total_bytes_ = total_bytes_ - old_bytes + value.size() + new_key_bytes;
  if (found == entries_.end()) {
    entries_.emplace(key, value);
  } else {
    found->second = value;
  }
  return {};
}

Result<std::string> Board::SetOnce(std::string_view key, std::string_view value) {
  if (const std::string* held = Find(key); held != nullptr) return *held;
  RABIT_RETURN_IF_ERROR(Set(key, value));
  return std::string(value);
}

const std::string* Board::Find(std::string_view key) const {
  auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

Result<int64_t> Board::Add(std::string_view key, int64_t amount) {
  int64_t value = 0;
  if (const std::string* text = Find(key); text != nullptr) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size()) {
      return InvalidArgument("store key '" + std::string(key) +
                             "' does not hold a number; add only to counters");
    }
  }
  if (__builtin_add_overflow(value, amount, &value)) {
    return InvalidArgument("the counter at store key '" + std::string(key) + "' would overflow");
  }
  RABIT_RETURN_IF_ERROR(Set(key, std::to_string(value)));
  return value;
}

}  // namespace rabit
