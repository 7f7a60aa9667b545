// PeerProcess: another rank of this host, as a process: is it alive, and may its memory be read.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/bytes.h"
#include "base/unique_fd.h"

namespace rabit {

// Thread-safe.
class PeerProcess {
 public:
  // `connection`: a Unix socket that the peer holds open as long as it lives.
  PeerProcess(int rank, pid_t pid, UniqueFd connection)
      : rank_(rank), pid_(pid), connection_(std::move(connection)) {}

  int rank() const { return rank_; }
  int connection() const { return connection_.get(); }
  // False once the peer has ended, or has closed its transport.
  bool IsAlive() const;
  // Copies from the peer's memory (process_vm_readv); false if that is not permitted, if part of
  // the range is not readable, or if the peer is not alive afterwards: its process number might
  // then have been given to another process.
  bool Read(uint64_t address, Bytes to) const;

 private:
  const int rank_;
  const pid_t pid_;
  const UniqueFd connection_;
};

}  // namespace rabit
