// What tests ask of the emulated CUDA driver beyond the driver's own functions.  Plain C names, as
// everything in a library that is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/device/cuda_functions.h"

namespace rabit::emulated_cuda {

struct Counts {
  int64_t pinned = 0;  // allocations that live
  int64_t memory = 0;  // of cuMemAlloc
  int64_t streams = 0;
  int64_t events = 0;
  int64_t contexts = 0;  // retained and not released
  int64_t copies = 0;    // that were done
  // Work on memory that was freed meanwhile, contexts left behind, graphs that a call has lost.
  int64_t violations = 0;
};

// X(name of the symbol, its type).
#define RABIT_EMULATED_CUDA_FUNCTIONS(X)                                                         \
  /* From now on every piece of work on a stream is delayed by up to so long. */                 \
  X(rabit_emulated_delays, void(uint64_t seed, uint32_t delay_us_max))                           \
  /* The call of `function` after `skip` more gives `error`; "copy": the work, not the call, */  \
  /* which breaks the driver as a kernel's error does.  0 calls it off and heals. */             \
  X(rabit_emulated_fail, void(const char* function, uint64_t skip, cuda::Result error))          \
  X(rabit_emulated_counts, void(Counts * counts))                                                \
  X(rabit_emulated_calls, uint64_t(const char* function))                                        \
  /* The number of the last copy to the host that was put on a stream and begins at `memory`, */ \
  /* counted over all such copies; 0: there was none. */                                         \
  X(rabit_emulated_copy_of, uint64_t(cuda::Pointer memory))                                      \
  /* What streams answer who asks; unless it is none, the default streams capture a graph, */    \
  /* and no thread may make a call that loses it. */                                             \
  X(rabit_emulated_capture, void(int32_t status))                                                \
  /* While it is true, copies to a device do not begin. */                                       \
  X(rabit_emulated_hold, void(int32_t is_held))                                                  \
  X(rabit_emulated_devices, void(int32_t count)) /* how many there are; 2 at first */            \
  /* Memory that the host may not touch. */                                                      \
  X(rabit_emulated_allocate, cuda::Pointer(int32_t device, size_t bytes))                        \
  X(rabit_emulated_free, void(cuda::Pointer memory))                                             \
  /* Where `kernel` of rabit_emulated_launch sees it. */                                         \
  X(rabit_emulated_inside, void*(cuda::Pointer memory))                                          \
  /* The same of `bytes` on `device`; null if they are not there. */                             \
  X(rabit_emulated_reach, void*(cuda::Pointer memory, size_t bytes, int32_t device))             \
  X(rabit_emulated_current_device, int32_t()) /* of this thread; -1: there is none */            \
  /* Puts `kernel` on a stream, or on the default one of `device`. */                            \
  X(rabit_emulated_launch,                                                                       \
    void(int32_t device, cuda::Stream stream, void (*kernel)(void* argument), void* argument))   \
  /* Waits until everything on the stream is done. */                                            \
  X(rabit_emulated_finish, void(int32_t device, cuda::Stream stream))

#define RABIT_EMULATED_CUDA_TYPE(name, ...) using name##_type = __VA_ARGS__;
RABIT_EMULATED_CUDA_FUNCTIONS(RABIT_EMULATED_CUDA_TYPE)
#undef RABIT_EMULATED_CUDA_TYPE

}  // namespace rabit::emulated_cuda
