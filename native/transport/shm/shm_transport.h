// Transport "shm": between the ranks of one host, through shared memory.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "base/status.h"
#include "transport/connect.h"
#include "transport/shm/inbox.h"
#include "transport/transport.h"

namespace rabit {

enum class SingleCopy : int32_t {
  kAuto = 0,  // where a trial between the two ranks says that it is permitted and faster
  kOn = 1,    // connecting fails where it does not
  kOff = 2,
};

struct ShmOptions {
  // How long a wait looks again and again before it sleeps, at most; it adapts to whether that pays
  // off.  -1: by the cores of the ranks (SpinTimesFor).
  int spin_us = -1;
  // Messages of at least single_copy_min_bytes are read straight from the sender's memory
  // (process_vm_readv) instead of passing through the ring.
  SingleCopy single_copy = SingleCopy::kAuto;
  uint64_t single_copy_min_bytes = 128 * 1024;
  // Of each (sender, receiver, stream); 0: 1 MiB, less where a host has many ranks (ShmRingBytes).
  // A multiple of 4096.  Longer messages go through it in chunks of chunk_bytes, several in flight.
  uint32_t ring_bytes = 0;
  uint32_t chunk_bytes = 64 * 1024;
  // Whether what passes through the ring has checksums, and everything passes through it: what
  // changes there ends the job, instead of its results.  The same on all ranks.
  bool is_checked = false;
};

// OK, or why shared memory cannot work here.
Status ProbeShm(const ShmOptions& options);

// Of a host with so many ranks: its inboxes take about 1 GiB together at most.
uint32_t ShmRingBytes(const ShmOptions& options, int local_ranks, int streams);

// Takes the memory into which the other ranks of the host will write; kResourceExhausted if it
// cannot be had.
Result<Inbox> ReserveShm(const ConnectContext& context, const ShmOptions& options);

// Connects this rank with all others of its host; blocks until they have called it too.
// Operations name global ranks; one with a rank of another host fails with kInvalidArgument.
//
// The other ranks are found through the store, which only holders of the job's secret can read:
// each rank publishes the name of an abstract Unix socket (no file, gone with the process) and a
// random word that a peer must repeat, and takes connections of its own user only.  The memory
// itself has no name either and goes over that connection.
Result<std::unique_ptr<Transport>> ConnectShmTransport(const ConnectContext& context,
                                                       const ShmOptions& options, Inbox inbox);
// The same with memory of its own.
Result<std::unique_ptr<Transport>> ConnectShmTransport(const ConnectContext& context,
                                                       const ShmOptions& options);

}  // namespace rabit
