// The functions of the CUDA driver that we call, as its C interface has them.  Declared by us, so
// that nothing of NVIDIA's is needed to build; tests/repo/test_cuda_functions.py compares them
// with NVIDIA's own header, and the emulated driver of the tests exports the same names.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rabit::cuda {

using Result = int32_t;                 // CUresult
using Device = int32_t;                 // CUdevice
using Pointer = uint64_t;               // CUdeviceptr
using Context = struct ContextOfCuda*;  // CUcontext
using Stream = struct StreamOfCuda*;    // CUstream; null: the default stream
using Event = struct EventOfCuda*;      // CUevent

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kCaptureUnsupported = 900;
inline constexpr Result kCaptureIsolation = 905;
inline constexpr Result kCaptureImplicit = 906;

inline constexpr uint32_t kStreamNonBlocking = 1;
inline constexpr uint32_t kEventDisableTiming = 2;
inline constexpr uint32_t kHostAllocPortable = 1;
inline constexpr int32_t kCaptureStatusNone = 0;
inline constexpr int32_t kCaptureModeRelaxed = 2;

// X(name of the symbol, its type).
#define RABIT_CUDA_FUNCTIONS(X)                                                          \
  X(cuInit, Result(uint32_t flags))                                                      \
  X(cuDriverGetVersion, Result(int32_t* version))                                        \
  X(cuGetErrorName, Result(Result error, const char** name))                             \
  X(cuGetErrorString, Result(Result error, const char** text))                           \
  X(cuDeviceGetCount, Result(int32_t* count))                                            \
  X(cuDeviceGet, Result(Device* device, int32_t index))                                  \
  X(cuDevicePrimaryCtxRetain, Result(Context* context, Device device))                   \
  X(cuDevicePrimaryCtxRelease_v2, Result(Device device))                                 \
  X(cuCtxPushCurrent_v2, Result(Context context))                                        \
  X(cuCtxPopCurrent_v2, Result(Context* context))                                        \
  X(cuStreamCreate, Result(Stream* stream, uint32_t flags))                              \
  X(cuStreamDestroy_v2, Result(Stream stream))                                           \
  X(cuStreamWaitEvent, Result(Stream stream, Event event, uint32_t flags))               \
  X(cuStreamIsCapturing, Result(Stream stream, int32_t* status))                         \
  X(cuThreadExchangeStreamCaptureMode, Result(int32_t* mode))                            \
  X(cuEventCreate, Result(Event* event, uint32_t flags))                                 \
  X(cuEventDestroy_v2, Result(Event event))                                              \
  X(cuEventRecord, Result(Event event, Stream stream))                                   \
  X(cuEventQuery, Result(Event event))                                                   \
  X(cuMemHostAlloc, Result(void** memory, size_t bytes, uint32_t flags))                 \
  X(cuMemFreeHost, Result(void* memory))                                                 \
  X(cuMemAlloc_v2, Result(Pointer* memory, size_t bytes))                                \
  X(cuMemFree_v2, Result(Pointer memory))                                                \
  X(cuMemcpyDtoDAsync_v2, Result(Pointer to, Pointer from, size_t bytes, Stream stream)) \
  X(cuMemcpyDtoHAsync_v2, Result(void* to, Pointer from, size_t bytes, Stream stream))   \
  X(cuMemcpyHtoDAsync_v2, Result(Pointer to, const void* from, size_t bytes, Stream stream))

#define RABIT_CUDA_TYPE(name, ...) using name##_type = __VA_ARGS__;
RABIT_CUDA_FUNCTIONS(RABIT_CUDA_TYPE)
#undef RABIT_CUDA_TYPE

}  // namespace rabit::cuda
