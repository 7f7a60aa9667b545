// How the ranks of an emulated communicator find each other, and when they are ready.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "testing/emulated_nccl/library.h"

namespace rabit::emulated_nccl {

inline Board* Map(const std::string& file) {
  const int opened = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return nullptr;
  void* const memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
  ::close(opened);
  return memory == MAP_FAILED ? nullptr : static_cast<Board*>(memory);
}

// What tells GPUs apart: the host, which a process may name itself, and the device there.  As in
// the real one it does not matter whose process it is.
inline int64_t PlaceOf(int device) {
  constexpr uint64_t kDevicesMax = 64;
  char name[256] = {};
  const char* const given = ::getenv("NCCL_HOSTID");
  if (given == nullptr) (void)::gethostname(name, sizeof name - 1);
  const uint64_t host = std::hash<std::string>()(given == nullptr ? name : given);
  return static_cast<int64_t>(host * kDevicesMax + static_cast<uint64_t>(device));
}

// With the lock.  The last one to come removes the file, which nobody needs any more.
inline Result Poll(Library& all, Communicator& comm) {
  if (comm.error != kSuccess) return comm.error;
  if (!comm.has_joined) {
    if (comm.board->joined.load() < comm.size) return kInProgress;
    comm.has_joined = true;
    WriteHandle(all, comm);
    for (int rank = 0; rank < comm.size; ++rank) {
      const bool is_same = comm.board->places[rank].load() == comm.board->places[comm.rank].load();
      if (rank == comm.rank || !is_same) continue;
      comm.error = Tell(all, kInvalidUsage,
                        "Duplicate GPU detected : rank " + std::to_string(comm.rank) +
                            " and rank " + std::to_string(rank) + " both on CUDA device");
      return comm.error;
    }
  }
  if (comm.polls_left > 0) {
    --comm.polls_left;
    return kInProgress;
  }
  for (const auto& launch : std::exchange(comm.launches, {})) launch();
  if (!comm.is_finalizing) return kSuccess;
  comm.is_finalized = comm.kernels == 0 && HasArrived(*comm.board, comm.rank, comm.size);
  return comm.is_finalized ? kSuccess : kInProgress;
}

}  // namespace rabit::emulated_nccl
