#include "transport/shm/control_ring.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "base/crc32c.h"

namespace rabit {
namespace {

struct Header {
  uint32_t length;
  uint32_t checksum;
};
constexpr size_t kHeaderBytes = sizeof(Header);
static_assert(kHeaderBytes == 8);

uint64_t PaddedBytes(uint64_t bytes) { return kHeaderBytes + (bytes + 7) / 8 * 8; }

// Of the message that begins after `at` bytes of the ring's life.
uint32_t ChecksumOf(uint64_t at, ConstBytes message) {
  const uint64_t place[] = {at, message.size()};
  return Crc32cExtend(Crc32c(std::as_bytes(std::span(place))), message);
}

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
  // Acquire, because the bytes up to there are about to be overwritten: the reader has copied them
  // before it moved the count.
  const uint64_t used = at - reader.consumed.load(std::memory_order_acquire);
  const uint64_t needed = PaddedBytes(message.size());
  // The count is in memory that another process writes: one that cannot be counts as a full ring.
  if (used > data.size() || needed > data.size() - used) return false;
  const Header header{static_cast<uint32_t>(message.size()), ChecksumOf(at, message)};
  CopyIn(at, {reinterpret_cast<const std::byte*>(&header), sizeof header});
  CopyIn(at + kHeaderBytes, message);
  // Sequentially consistent: the writer looks at `is_sleeping` next, and the reader looks at this
  // after it has set that.
  writer.written.store(at + needed, std::memory_order_seq_cst);
  return true;
}

Result<std::optional<std::vector<std::byte>>> ControlRing::Take() {
  const uint64_t at = reader.consumed.load(std::memory_order_relaxed);
  const uint64_t there = writer.written.load(std::memory_order_seq_cst) - at;
  if (there == 0) return std::optional<std::vector<std::byte>>();
  Header header{};
  if (there >= kHeaderBytes && there <= data.size()) {
    CopyOut(at, {reinterpret_cast<std::byte*>(&header), sizeof header});
  }
  if (there < kHeaderBytes || there > data.size() || header.length > data.size() ||
      PaddedBytes(header.length) > there) {
    return Internal("shm: " + std::to_string(there) + " bytes of control messages, of which the " +
                    "first claims " + std::to_string(header.length) +
                    ", cannot be; run the same version of rabit in every process");
  }
  // The message is copied before it is checked, as the writer's process could change it in between.
  std::optional<std::vector<std::byte>> message(std::in_place, header.length);
  CopyOut(at + kHeaderBytes, *message);
  if (const uint32_t read = ChecksumOf(at, *message); read != header.checksum) {
    return Internal("shm: a control message of " + std::to_string(header.length) +
                    " bytes has changed in shared memory (checksum " + std::to_string(read) +
                    " instead of " + std::to_string(header.checksum) +
                    "): its memory fails, or a process wrote to it; restart the job, and test the "
                    "memory of this host if it happens again");
  }
  reader.consumed.store(at + PaddedBytes(header.length), std::memory_order_release);
  return message;
}

}  // namespace rabit
