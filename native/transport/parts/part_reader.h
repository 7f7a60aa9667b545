// PartReader: reads parts that other ranks serve (transport/parts/part_server.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/listener.h"

namespace rabit {

struct PartRead {
  int32_t rank = -1;  // that serves it
  uint64_t part = 0;
  uint64_t version = 0;
  Bytes into;  // of the part's size
};

// Thread-safe: reads that overlap use connections of their own, which are kept for later ones.
class PartReader {
 public:
  // addresses: of the servers, by rank.  rank: of this process.  silence: how long a server that answers
  // nothing counts as alive.
  PartReader(std::vector<std::string> addresses, const Secret& secret, int32_t rank,
             std::chrono::milliseconds silence);

  // All owners send at the same time.  Returns when every part is whole and of its version, or says what
  // is wrong with the first one that is not: kPeerLost of a rank that has died or is silent, kTimedOut of
  // one that does not come to the version until the deadline, kMismatch of one that has gone on.
  Status Read(std::span<const PartRead> reads, Deadline deadline);

 private:
  Result<UniqueFd> Ask(const PartRead& read, bool may_be_kept, Deadline deadline);
  Result<UniqueFd> DialOwner(int32_t owner, Deadline deadline) const;
  Status Take(int fd, const PartRead& read, Deadline deadline);
  // A connection may have died while nothing was asked on it: the first failure asks once more.
  Status Finish(Result<UniqueFd> asked, const PartRead& read, Deadline deadline);
  Status Lost(const PartRead& read, const Status& why, Deadline deadline) const;
  std::string Where(const PartRead& read) const;

  const std::vector<std::string> addresses_;
  const Secret secret_;
  const int32_t rank_;
  const std::chrono::milliseconds silence_;
  Mutex mutex_;
  std::vector<std::vector<UniqueFd>> idle_ RABIT_GUARDED_BY(mutex_);  // by rank
};

}  // namespace rabit
