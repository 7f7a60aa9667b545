// What the emulated NCCL is at, for who reads the output of a test that does not end.
#pragma once

#include <sstream>
#include <string>

#include "testing/emulated_nccl/library.h"

namespace rabit::emulated_nccl {

// With the lock.
inline std::string Described(const Communicator& comm) {
  std::ostringstream text;
  text << "rank " << comm.rank << " of " << comm.size << " on device " << comm.device << ", "
       << comm.file << ": " << (comm.has_joined ? "joined" : "not joined") << ", "
       << comm.polls_left << " polls left, " << comm.launches.size() << " to be launched, "
       << comm.kernels << " kernels not over; written/read";
  for (int peer = 0; peer < comm.size; ++peer) {
    const Pipe& pipe = comm.board->pipes[comm.rank][peer];
    text << " to " << peer << " " << pipe.written.load() << "/" << pipe.read.load();
  }
  return text.str();
}

// The same.
inline std::string Described(const Library& all) {
  std::ostringstream text;
  text << "emulated NCCL, " << all.counts.violations << " violations:\n";
  for (const auto& [handle, comm] : all.comms) text << "  " << Described(*comm) << "\n";
  for (const auto& [device, turns] : all.turns) {
    if (turns.current == turns.next) continue;
    text << "  device " << device << " is at kernel " << turns.current << " of " << turns.next
         << "\n";
  }
  return text.str();
}

}  // namespace rabit::emulated_nccl
