#include "transport/shm/control_ring.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace rabit {
namespace {

constexpr size_t kLengthBytes = sizeof(uint64_t);

uint64_t PaddedBytes(uint64_t bytes) { return kLengthBytes + (bytes + 7) / 8 * 8; }

}  // namespace

void ControlRing::CopyIn(uint64_t at, ConstBytes bytes) {
  if (bytes.empty()) return;
  const size_t begin = at % data.size();
  const size_t first = std::min(bytes.size(), data.size() - begin);
  std::memcpy(data.data() + begin, bytes.data(), first);
  if (first < bytes.size()) std::memcpy(data.data(), bytes.data() + first, bytes.size() - first);
}

void ControlRing::CopyOut(uint64_t at, Bytes bytes) const {
  if (bytes.empty()) return;
  const size_t begin = at % data.size();
  const size_t first = std::min(bytes.size(), data.size() - begin);
  std::memcpy(bytes.data(), data.data() + begin, first);
  if (first < bytes.size()) std::memcpy(bytes.data() + first, data.data(), bytes.size() - first);
}

bool ControlRing::TryPut(ConstBytes message) {
  const uint64_t at = writer.written.load(std::memory_order_relaxed);
  const uint64_t used = at - reader.consumed.load(std::memory_order_acquire);
  const uint64_t needed = PaddedBytes(message.size());
  if (used > data.size() || needed > data.size() - used) return false;
  const uint64_t length = message.size();
  CopyIn(at, {reinterpret_cast<const std::byte*>(&length), sizeof length});
  CopyIn(at + kLengthBytes, message);
  // Sequentially consistent: the writer looks at `is_sleeping` next, and the reader looks at this
  // after it has set that.
  writer.written.store(at + needed, std::memory_order_seq_cst);
  return true;
}

Result<std::optional<std::vector<std::byte>>> ControlRing::Take() {
  const uint64_t at = reader.consumed.load(std::memory_order_relaxed);
  const uint64_t there = writer.written.load(std::memory_order_seq_cst) - at;
  if (there == 0) return std::optional<std::vector<std::byte>>();
  uint64_t length = 0;
  if (there >= kLengthBytes && there <= data.size()) {
    CopyOut(at, {reinterpret_cast<std::byte*>(&length), sizeof length});
  }
  if (there < kLengthBytes || there > data.size() || length > data.size() ||
      PaddedBytes(length) > there) {
    return Internal("shm: " + std::to_string(there) + " bytes of control messages, of which the " +
                    "first claims " + std::to_string(length) +
                    ", cannot be; run the same version of rabit in every process");
  }
  std::optional<std::vector<std::byte>> message(std::in_place, static_cast<size_t>(length));
  CopyOut(at + kLengthBytes, *message);
  reader.consumed.store(at + PaddedBytes(length), std::memory_order_release);
  return message;
}

}  // namespace rabit
