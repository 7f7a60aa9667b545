// The functions of NCCL that we call, as its C interface has them.  Declared by us, so that nothing
// of NVIDIA's is needed to build; tests/repo/test_nccl_functions.py compares them with NVIDIA's own
// header, and the emulated NCCL of the tests exports the same names.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rabit::nccl {

using Result = int32_t;               // ncclResult_t
using DataType = int32_t;             // ncclDataType_t
using RedOp = int32_t;                // ncclRedOp_t
using Residence = int32_t;            // ncclScalarResidence_t
using Comm = struct CommOfNccl*;      // ncclComm_t
using Stream = struct StreamOfCuda*;  // cudaStream_t

struct UniqueId {  // ncclUniqueId
  char internal[128];
};

// ncclConfig_t as far as version 2.14 has it, which says so in `version`; newer libraries take
// defaults for what they have more.
struct Config {
  size_t size;
  uint32_t magic;
  uint32_t version;
  int32_t blocking;
};

inline constexpr uint32_t kConfigMagic = 0xcafebeef;
// The first with communicators that do not block, and the version of Config.
inline constexpr int32_t kVersionMin = 21400;

inline constexpr Result kSuccess = 0;
inline constexpr Result kUnhandledCudaError = 1;
inline constexpr Result kSystemError = 2;
inline constexpr Result kInternalError = 3;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;

inline constexpr DataType kInt8 = 0;
inline constexpr DataType kUint8 = 1;
inline constexpr DataType kInt32 = 2;
inline constexpr DataType kInt64 = 4;
inline constexpr DataType kFloat16 = 6;
inline constexpr DataType kFloat32 = 7;
inline constexpr DataType kFloat64 = 8;
inline constexpr DataType kBfloat16 = 9;

inline constexpr RedOp kSum = 0;
inline constexpr RedOp kProd = 1;
inline constexpr RedOp kMax = 2;
inline constexpr RedOp kMin = 3;
inline constexpr RedOp kAvg = 4;
inline constexpr RedOp kNumOps = 5;  // those that are made start here

inline constexpr Residence kScalarHostImmediate = 1;

// X(name of the symbol, its type).
#define RABIT_NCCL_FUNCTIONS(X)                                                                  \
  X(ncclGetVersion, Result(int32_t* version))                                                    \
  X(ncclGetUniqueId, Result(UniqueId* id))                                                       \
  X(ncclGetErrorString, const char*(Result result))                                              \
  X(ncclGetLastError, const char*(Comm comm))                                                    \
  X(ncclCommInitRankConfig,                                                                      \
    Result(Comm* comm, int32_t size, UniqueId id, int32_t rank, Config* config))                 \
  X(ncclCommFinalize, Result(Comm comm))                                                         \
  X(ncclCommDestroy, Result(Comm comm))                                                          \
  X(ncclCommAbort, Result(Comm comm))                                                            \
  X(ncclCommGetAsyncError, Result(Comm comm, Result* error))                                     \
  X(ncclRedOpCreatePreMulSum,                                                                    \
    Result(RedOp* op, void* scalar, DataType type, Residence residence, Comm comm))              \
  X(ncclRedOpDestroy, Result(RedOp op, Comm comm))                                               \
  X(ncclAllReduce, Result(const void* in, void* out, size_t count, DataType type, RedOp op,      \
                          Comm comm, Stream stream))                                             \
  X(ncclReduce, Result(const void* in, void* out, size_t count, DataType type, RedOp op,         \
                       int32_t root, Comm comm, Stream stream))                                  \
  X(ncclBroadcast, Result(const void* in, void* out, size_t count, DataType type, int32_t root,  \
                          Comm comm, Stream stream))                                             \
  X(ncclAllGather,                                                                               \
    Result(const void* in, void* out, size_t count, DataType type, Comm comm, Stream stream))    \
  X(ncclReduceScatter, Result(const void* in, void* out, size_t count, DataType type, RedOp op,  \
                              Comm comm, Stream stream))                                         \
  X(ncclSend,                                                                                    \
    Result(const void* in, size_t count, DataType type, int32_t peer, Comm comm, Stream stream)) \
  X(ncclRecv,                                                                                    \
    Result(void* out, size_t count, DataType type, int32_t peer, Comm comm, Stream stream))      \
  X(ncclGroupStart, Result())                                                                    \
  X(ncclGroupEnd, Result())

#define RABIT_NCCL_TYPE(name, ...) using name##_type = __VA_ARGS__;
RABIT_NCCL_FUNCTIONS(RABIT_NCCL_TYPE)
#undef RABIT_NCCL_TYPE

}  // namespace rabit::nccl
