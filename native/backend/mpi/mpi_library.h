// MpiLibrary: the MPI functions that we call, looked up in a library that is in memory already.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/mpi/mpi_handles.h"
#include "base/result.h"
#include "base/status.h"

namespace rabit {

// Parts of a buffer for the vector forms: count and offset of each, in elements of the datatype.
struct MpiParts {
  std::span<const int> counts;
  std::span<const int> offsets;
};

// One method per MPI function, with the semantics of the function.  Everything that starts with I
// returns at once and gives a request.  Buffers and parts are borrowed until the request is done.
// Thread-safe: where the library wants one thread at a time, they take turns.
class MpiLibrary {
 public:
  virtual ~MpiLibrary() = default;

  // kUnsupported names the function that is missing.
  static Result<std::unique_ptr<MpiLibrary>> Find(const MpiHandles& handles);

  virtual bool IsFinalized() = 0;
  virtual Status RankAndSize(MpiHandle comm, int* rank, int* size) = 0;
  // Errors of `comm` come back as codes; without this they end the process.
  virtual Status ReturnErrors(MpiHandle comm, MpiHandle errors_return) = 0;
  virtual Status Idup(MpiHandle comm, MpiHandle* copy, MpiHandle* request) = 0;
  // Blocks until the ranks, all of which must call it, have come.
  virtual Status CreateGroup(MpiHandle parent, std::span<const int> ranks, int tag,
                             MpiHandle* comm) = 0;
  virtual Status FreeComm(MpiHandle comm) = 0;

  // `received`: bytes of a finished receive; may be null.
  virtual Status Test(MpiHandle* request, bool* is_done, int64_t* received) = 0;
  virtual Status Cancel(MpiHandle request) = 0;

  virtual Status Isend(const void* data, int bytes, int peer, int tag, MpiHandle comm,
                       MpiHandle* request) = 0;
  virtual Status Irecv(void* data, int bytes, int peer, int tag, MpiHandle comm,
                       MpiHandle* request) = 0;
  virtual Status Ibarrier(MpiHandle comm, MpiHandle* request) = 0;
  virtual Status Ibcast(void* data, int bytes, int root, MpiHandle comm, MpiHandle* request) = 0;
  // In place.
  virtual Status Iallreduce(void* data, int count, MpiHandle dtype, MpiHandle op, MpiHandle comm,
                            MpiHandle* request) = 0;
  // In place on the root; only read elsewhere.
  virtual Status Ireduce(void* data, int count, MpiHandle dtype, MpiHandle op, int root,
                         bool is_root, MpiHandle comm, MpiHandle* request) = 0;
  virtual Status IreduceScatter(const void* in, void* out, std::span<const int> counts,
                                MpiHandle dtype, MpiHandle op, MpiHandle comm,
                                MpiHandle* request) = 0;
  // `mine` null, below: this rank's part lies in its place in `all` already.
  virtual Status Iallgatherv(const void* mine, int bytes, void* all, MpiParts parts, MpiHandle comm,
                             MpiHandle* request) = 0;
  virtual Status Igatherv(const void* mine, int bytes, void* all, MpiParts parts, int root,
                          MpiHandle comm, MpiHandle* request) = 0;
  virtual Status Iscatterv(const void* all, MpiParts parts, void* mine, int bytes, int root,
                           MpiHandle comm, MpiHandle* request) = 0;
  virtual Status Ialltoallv(const void* in, MpiParts sends, void* out, MpiParts receives,
                            MpiHandle comm, MpiHandle* request) = 0;
};

}  // namespace rabit
