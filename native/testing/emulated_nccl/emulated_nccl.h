// What tests ask of the emulated NCCL beyond NCCL's own functions.  Plain C names, as everything in
// a library that is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/nccl/nccl_functions.h"

namespace rabit::emulated_nccl {

struct Counts {
  int64_t communicators = 0;  // that live
  int64_t operators = 0;      // made and not destroyed
  int64_t kernels = 0;        // that were launched
  int64_t exchanged = 0;      // of these, those that came to their end
  // Calls that differ between ranks, calls on what is gone or not ready, memory of no device.
  int64_t violations = 0;
};

// X(name of the symbol, its type).
#define RABIT_EMULATED_NCCL_FUNCTIONS(X)                                                      \
  /* The call of `function` after `skip` more gives `result`; 0 calls it off. */              \
  X(rabit_emulated_nccl_fail, void(const char* function, uint64_t skip, nccl::Result result)) \
  /* The kernel after `skip` more never ends, and its communicator tells `result`. */         \
  X(rabit_emulated_nccl_break, void(uint64_t skip, nccl::Result result))                      \
  X(rabit_emulated_nccl_version, void(int32_t version))                                       \
  /* Prints what each communicator waits for. */                                              \
  X(rabit_emulated_nccl_show, void())                                                         \
  X(rabit_emulated_nccl_counts, void(Counts * counts))                                        \
  X(rabit_emulated_nccl_calls, uint64_t(const char* function))

#define RABIT_EMULATED_NCCL_TYPE(name, ...) using name##_type = __VA_ARGS__;
RABIT_EMULATED_NCCL_FUNCTIONS(RABIT_EMULATED_NCCL_TYPE)
#undef RABIT_EMULATED_NCCL_TYPE

}  // namespace rabit::emulated_nccl
