// MpiHandles: what mpi4py knows about the MPI library that it has loaded.
//
// A handle is an int of 4 bytes (MPICH and its kin) or a pointer of 8 (Open MPI), and constants
// have other values in every library.  No header is needed at build time because the values come
// from the process that has the library in memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/result.h"

namespace rabit {

using MpiHandle = uint64_t;  // the bits of an int or a pointer, extended with zeros

inline constexpr int kReduceOpSlots = 9;  // one more than the largest ReduceOp

struct MpiHandles {
  std::string library;         // a loaded file that leads to the MPI_ functions
  int64_t width = 0;           // bytes of a handle: 4 or 8
  bool is_serialized = false;  // threads must take turns (MPI_THREAD_SERIALIZED)
  int64_t tag_max = 32'767;
  int64_t message_bytes = int64_t{1} << 30;  // longer messages are cut
  MpiHandle in_place = 0;
  MpiHandle comm = 0;
  MpiHandle errors_return = 0;
  MpiHandle byte = 0;
  std::array<MpiHandle, kDTypeCount> dtypes{};  // 0: MPI has no such type
  std::array<MpiHandle, kReduceOpSlots> ops{};  // 0: MPI has no such operation
  std::string version;                          // how the library calls itself
  std::string transport;                        // how it says that it moves bytes

  // "key=value;key=value".  Numbers are decimal; dtypes and operations go by their names.
  static Result<MpiHandles> Parse(std::string_view text);
};

}  // namespace rabit
