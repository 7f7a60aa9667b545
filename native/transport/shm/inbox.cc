#include "transport/shm/inbox.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <string>

#include "base/crc32c.h"
#include "base/socket.h"

namespace rabit {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

constexpr size_t kSlotsAt = sizeof(ReaderState) + sizeof(SenderState);
constexpr size_t kAcknowledgedAt = kSlotsAt + kSlots * sizeof(Slot);
constexpr size_t kRevokedAt = kAcknowledgedAt + kOffers * sizeof(uint64_t);
constexpr size_t kLaneHeadBytes =
    (kRevokedAt + kOffers * sizeof(uint64_t) + kPageBytes - 1) / kPageBytes * kPageBytes;
// Of every pair of ranks and every stream, zeroed when the ranks start: a page more is half as much
// again.
static_assert(kLaneHeadBytes == 2 * kPageBytes);

size_t DoorbellBytes(int streams) {
  const size_t bytes = static_cast<size_t>(streams) * sizeof(Doorbell);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Result<std::byte*> MapShared(int fd, size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted("shm: mapping " + std::to_string(bytes) +
                             " bytes of shared memory failed: " + ErrnoText(errno) +
                             "; raise the memory limit or use RABIT_TRANSPORT=tcp");
  }
  return static_cast<std::byte*>(base);
}

// Since Linux 5.14; headers of older systems, which wheels are built on, do not have it.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

// Whether the kernel knows MADV_POPULATE_WRITE: it checks the advice before the range.
bool CanReserveByUse() { return ::madvise(nullptr, 0, MADV_POPULATE_WRITE) == 0; }

}  // namespace

uint32_t ChecksumOf(const Slot& slot, uint64_t number, ConstBytes chunk) {
  const bool is_inline = slot.kind == SlotKind::kInline;
  const uint64_t fields[] = {number,
                             slot.tag,
                             slot.message_bytes,
                             is_inline ? 0 : slot.argument,
                             slot.chunk_bytes,
                             static_cast<uint64_t>(slot.kind)};
  return Crc32cExtend(Crc32c(std::as_bytes(std::span(fields))), chunk);
}

void SetChecksum(Slot& slot, uint32_t checksum) {
  if (slot.kind == SlotKind::kInline) {
    slot.argument = checksum;
  } else {
    std::memcpy(slot.inline_data.data(), &checksum, sizeof checksum);
  }
}

uint32_t ChecksumIn(const Slot& slot) {
  if (slot.kind == SlotKind::kInline) return static_cast<uint32_t>(slot.argument);
  uint32_t checksum = 0;
  std::memcpy(&checksum, slot.inline_data.data(), sizeof checksum);
  return checksum;
}

Status LaneMemory::Reserve(uint64_t begin, uint64_t end) const {
  if (::madvise(data + begin, end - begin, MADV_POPULATE_WRITE) == 0) return Status();
  if (errno == EINVAL) return Status();  // a kernel before 5.14, where Create reserves the rings
  return ResourceExhausted("shm: reserving " + std::to_string(end - begin) +
                           " bytes of shared memory failed: " + ErrnoText(errno) +
                           "; raise the memory limit or use RABIT_TRANSPORT=tcp");
}

size_t InboxShape::HeadBytes() const {
  return DoorbellBytes(streams) +
         static_cast<size_t>(senders) * static_cast<size_t>(streams) * kLaneHeadBytes;
}

size_t InboxShape::TotalBytes() const {
  return HeadBytes() + static_cast<size_t>(senders) * static_cast<size_t>(streams) * ring_bytes;
}

Result<Inbox> Inbox::Create(const InboxShape& shape, Rings rings) {
  UniqueFd fd(memfd_create("rabit-inbox", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open()) {
    return Unsupported("shm: memfd_create failed: " + ErrnoText(errno) +
                       "; use RABIT_TRANSPORT=tcp on this kernel");
  }
  const size_t bytes = shape.TotalBytes();
  if (rings == Rings::kReservedByUse && !CanReserveByUse()) rings = Rings::kReserved;
  const size_t reserved = rings == Rings::kReserved ? bytes : shape.HeadBytes();
  // The size is for all rings, the reservation only for what is touched: pages are taken when a
  // ring is used.
  int error = ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (error == 0) error = posix_fallocate(fd.get(), 0, static_cast<off_t>(reserved));
  if (error != 0) {
    return ResourceExhausted("shm: reserving " + std::to_string(reserved) + " of " +
                             std::to_string(bytes) +
                             " bytes of shared memory failed: " + ErrnoText(error) +
                             "; raise the memory limit or use RABIT_TRANSPORT=tcp");
  }
  // After the size is set; from here on nobody can change it, this process included.
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Unsupported("shm: the kernel cannot seal shared memory: " + ErrnoText(errno) +
                       "; use RABIT_TRANSPORT=tcp");
  }
  RABIT_ASSIGN_OR_RETURN(std::byte * base, MapShared(fd.get(), bytes));
  return Inbox(shape, std::move(fd), base);
}

Result<Inbox> Inbox::Map(UniqueFd fd, const InboxShape& shape) {
  struct stat status{};
  // Unsealed memory could be shrunk by its owner, and a look at it would end this process by
  // SIGBUS.
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &status) != 0 ||
      static_cast<size_t>(status.st_size) != shape.TotalBytes()) {
    return Mismatch("shm: a peer passed shared memory of " + std::to_string(status.st_size) +
                    " bytes with seals " + std::to_string(seals) + ", needed are " +
                    std::to_string(shape.TotalBytes()) +
                    " sealed bytes; run the same version and options on every rank");
  }
  RABIT_ASSIGN_OR_RETURN(std::byte * base, MapShared(fd.get(), shape.TotalBytes()));
  return Inbox(shape, UniqueFd(), base);
}

Inbox::~Inbox() {
  if (base_ != nullptr) munmap(base_, shape_.TotalBytes());
}

Doorbell& Inbox::doorbell(int stream) const { return reinterpret_cast<Doorbell*>(base_)[stream]; }

LaneMemory Inbox::lane(int sender, int stream) const {
  const size_t index = static_cast<size_t>(sender) * static_cast<size_t>(shape_.streams) +
                       static_cast<size_t>(stream);
  std::byte* at = base_ + DoorbellBytes(shape_.streams) + index * kLaneHeadBytes;
  LaneMemory memory;
  // The memory is zeroed by the kernel, and zero is the start value of every counter in it.
  memory.reader = reinterpret_cast<ReaderState*>(at);
  memory.sender = reinterpret_cast<SenderState*>(at + sizeof(ReaderState));
  memory.slots = reinterpret_cast<Slot*>(at + kSlotsAt);
  memory.acknowledged = reinterpret_cast<std::atomic<uint64_t>*>(at + kAcknowledgedAt);
  memory.revoked = reinterpret_cast<std::atomic<uint64_t>*>(at + kRevokedAt);
  memory.data = base_ + shape_.HeadBytes() + index * shape_.ring_bytes;
  memory.ring_bytes = shape_.ring_bytes;
  return memory;
}

}  // namespace rabit
