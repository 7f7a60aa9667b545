#include "transport/parts/part_reader.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/crc32c.h"
#include "base/socket.h"
#include "transport/parts/part_wire.h"

namespace rabit {
namespace {

// Read at a time: each may take as long as a server may be silent.
constexpr size_t kReadBytes = 1024 * 1024;
constexpr size_t kIdleMax = 4;
constexpr std::chrono::milliseconds kRedialPause{10};

}  // namespace

PartReader::PartReader(std::vector<std::string> addresses, const Secret& secret, int32_t rank,
                       std::chrono::milliseconds silence)
    : addresses_(std::move(addresses)),
      secret_(secret),
      rank_(rank),
      silence_(silence),
      idle_(addresses_.size()) {}

Status PartReader::Read(std::span<const PartRead> reads, Deadline deadline) {
  std::vector<Result<UniqueFd>> asked;
  for (const PartRead& read : reads) {
    if (read.rank < 0 || static_cast<size_t>(read.rank) >= addresses_.size()) {
      return InvalidArgument("a part of rank " + std::to_string(read.rank) + " is wanted, and there are " +
                             std::to_string(addresses_.size()) + " ranks");
    }
    asked.push_back(Ask(read, true, deadline));
  }
  for (size_t i = 0; i < reads.size(); ++i) {
    RABIT_RETURN_IF_ERROR(Finish(std::move(asked[i]), reads[i], deadline));
  }
  return Status();
}

Result<UniqueFd> PartReader::Ask(const PartRead& read, bool may_be_kept, Deadline deadline) {
  const auto rank = static_cast<size_t>(read.rank);
  UniqueFd fd;
  if (may_be_kept) {
    MutexLock lock(mutex_);
    if (!idle_[rank].empty()) {
      fd = std::move(idle_[rank].back());
      idle_[rank].pop_back();
    }
  }
  const Deadline soon = std::min(deadline, After(silence_));
  if (!fd.is_open()) {
    RABIT_ASSIGN_OR_RETURN(fd, DialOwner(read.rank, soon));
  }
  const PartQuestion question{read.part, read.version, read.into.size()};
  RABIT_RETURN_IF_ERROR(WriteFull(fd.get(), Encode(question), soon));
  return fd;
}

// A listener drops some of many that come at once, and who it is slow to greet: they try again.  One
// that refuses has gone.
Result<UniqueFd> PartReader::DialOwner(int32_t owner, Deadline deadline) const {
  for (;;) {
    Result<UniqueFd> fd = DialOnce(addresses_[static_cast<size_t>(owner)], secret_,
                                   {"parts", 0, rank_, 0}, owner, deadline);
    const bool may_pass = fd.status().code() == Code::kTimedOut;
    if (!may_pass || std::chrono::steady_clock::now() + kRedialPause >= deadline) return fd;
    std::this_thread::sleep_for(kRedialPause);
  }
}

Status PartReader::Finish(Result<UniqueFd> asked, const PartRead& read, Deadline deadline) {
  for (bool is_last = false;; is_last = true) {
    const Status taken = asked.ok() ? Take(asked->get(), read, deadline) : asked.status();
    if (taken.ok()) {
      MutexLock lock(mutex_);
      std::vector<UniqueFd>& idle = idle_[static_cast<size_t>(read.rank)];
      if (idle.size() < kIdleMax) idle.push_back(std::move(*asked));
      return Status();
    }
    if (taken.code() != Code::kPeerLost || is_last) return Lost(read, taken, deadline);
    asked = Ask(read, false, deadline);
  }
}

Status PartReader::Take(int fd, const PartRead& read, Deadline deadline) {
  const auto soon = [&] { return std::min(deadline, After(silence_)); };
  PartAnswer answer{PartKind::kWait, 0};
  while (answer.kind == PartKind::kWait) {
    std::array<std::byte, kPartAnswerBytes> bytes;
    RABIT_RETURN_IF_ERROR(ReadFull(fd, bytes, soon()));
    RABIT_ASSIGN_OR_RETURN(answer, DecodePartAnswer(bytes));
    if (answer.kind == PartKind::kWait && std::chrono::steady_clock::now() >= deadline) {
      return TimedOut("it lives, and has not come to version " + std::to_string(read.version));
    }
  }
  if (answer.kind == PartKind::kUnknown) {
    return Mismatch("it serves no part of this number; give every rank the same model");
  }
  if (answer.kind == PartKind::kOtherSize) {
    return Mismatch("its part has " + std::to_string(answer.version) + " bytes, and " +
                    std::to_string(read.into.size()) + " are wanted; give every rank the same model");
  }
  const auto gone = [&](const std::string& version) {
    return Mismatch("it has gone on to version " + version + ", and version " + std::to_string(read.version) +
                    " is wanted: values were changed there while this rank still used those before");
  };
  if (answer.kind == PartKind::kGone) return gone(std::to_string(answer.version));
  uint32_t checksum = 0;
  for (size_t begin = 0; begin < read.into.size(); begin += kReadBytes) {
    const Bytes piece = read.into.subspan(begin, std::min(kReadBytes, read.into.size() - begin));
    RABIT_RETURN_IF_ERROR(ReadFull(fd, piece, soon()));
    checksum = Crc32cExtend(checksum, piece);
  }
  std::array<std::byte, kPartEndBytes> bytes;
  RABIT_RETURN_IF_ERROR(ReadFull(fd, bytes, soon()));
  RABIT_ASSIGN_OR_RETURN(const PartEnd end, DecodePartEnd(bytes));
  if (end.kind != PartKind::kParts) return gone("a later one");
  if (end.checksum == checksum) return Status();
  return Internal("its bytes changed on the way: their checksum is " + std::to_string(checksum) +
                  " here and " + std::to_string(end.checksum) + " there");
}

Status PartReader::Lost(const PartRead& read, const Status& why, Deadline deadline) const {
  // A server owes a sign of life before the deadline.
  const bool is_silent =
      why.code() == Code::kTimedOut && std::chrono::steady_clock::now() < deadline;
  if (is_silent) {
    return PeerLost(read.rank, Where(read) + " has been silent for " + std::to_string(silence_.count()) +
                                   " ms: " + why.message());
  }
  if (why.code() == Code::kPeerLost) return PeerLost(read.rank, Where(read) + " is lost: " + why.message());
  return Status(why.code(), Where(read) + ": " + why.message()).WithCulprit(read.rank);
}

std::string PartReader::Where(const PartRead& read) const {
  return "rank " + std::to_string(read.rank) + " at " + addresses_[static_cast<size_t>(read.rank)];
}

}  // namespace rabit
