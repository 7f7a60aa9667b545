// MpiRows: what of a job the MPI library runs itself.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/group.h"
#include "base/work.h"
#include "route/route.h"

namespace rabit {

enum class MpiCollectives {
  kAuto,      // the library's where they are fast, messages where our algorithms are faster
  kLibrary,   // the library's wherever they do what we promise
  kMessages,  // never the library's
};

struct MpiRows {
  // Places in EngineParts::backends.
  BackendId library = -1;  // what users call 'mpi'
  int32_t messages = -1;   // our algorithms over MPI messages: what the library does not do
  int32_t across = -1;     // the same over shared memory and MPI messages; -1: there is none

  MpiCollectives collectives = MpiCollectives::kAuto;
  bool is_default = false;                 // of operations that name no backend
  bool shares_hosts = false;               // the ranks of each host do without MPI
  std::array<bool, kDTypeCount> dtypes{};  // what the library has a type for
  std::array<bool, 16> ops{};              // by ReduceOp: what the library has an operation for

  // Whether the library runs it for a group whose ranks are not all on one host.
  bool RunsInLibrary(const Work& work, Load load, const Group& group, bool is_deterministic) const;
  // Whether it could, and give what we promise.
  bool CanRunInLibrary(const Work& work, Load load, const Group& group,
                       bool is_deterministic) const;

 private:
  bool CanReduce(const Work& work) const;
};

}  // namespace rabit
