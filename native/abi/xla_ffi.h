// The part of XLA's foreign function interface that is used here.
//
// Declared here so that nothing is compiled against jaxlib: XLA calls a handler with a frame, which
// has the arguments and a table of functions.  Structures grow at their end only, and each starts
// with its size. Source: OpenXLA, xla/ffi/api/c_api.h, version 0.3, 2026; what is declared is in
// version 0.1 as well.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rabit::xla {

// What a handler says that it was built for; XLA takes older ones for a year at least.
constexpr int32_t kMajorVersion = 0;
constexpr int32_t kMinorVersion = 1;

struct Error;    // opaque
struct Context;  // opaque
struct Future;   // opaque

struct Head {
  size_t size;
  void* extensions;
};

struct Version {
  Head head;
  int32_t major;
  int32_t minor;
};

// Of a frame that asks what the handler is.
constexpr int32_t kMetadataExtension = 1;
struct Metadata {
  size_t size;
  Version version;
};
struct Extension {
  size_t size;
  int32_t type;
  Extension* next;
  Metadata* metadata;  // of kMetadataExtension
};

struct ErrorArguments {
  Head head;
  const char* message;
  int32_t code;  // those of absl::Status
};
struct FutureArguments {
  Head head;
  Future* future;
  Error* error;  // of a failure; becomes XLA's
};

struct Api {
  Head head;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
  void* other[12];
  Error* (*create_future)(FutureArguments*);
  Error* (*set_available)(FutureArguments*);
  Error* (*set_error)(FutureArguments*);
};

enum class Type : int32_t {
  kBool = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6,
  kUint16 = 7,
  kUint32 = 8,
  kUint64 = 9,
  kFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex64 = 15,
  kBfloat16 = 16,
  kToken = 17,
  kComplex128 = 18,
  kFloat8E5m2 = 19,
  kFloat8E4m3fn = 20,
  kFloat8E5m2fnuz = 24,
  kFloat8E4m3fnuz = 25,
  kFloat8E8m0fnu = 33,
};

struct Buffer {
  Head head;
  Type type;
  void* data;
  int64_t rank;
  int64_t* extents;
};
struct Text {
  const char* data;
  size_t size;
};
struct Scalar {
  Type type;
  void* value;
};

struct Buffers {
  Head head;
  int64_t count;
  int32_t* kinds;
  Buffer** buffers;
};

enum class AttributeKind : int32_t { kScalar = 3, kText = 4 };
struct Attributes {
  Head head;
  int64_t count;
  AttributeKind* kinds;
  Text** names;
  void** values;  // Scalar, Text
};

constexpr int32_t kExecute = 3;
struct Frame {
  Head head;
  const Api* api;
  Context* context;
  int32_t stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  Future* future;  // out: XLA goes on when it is available
};

}  // namespace rabit::xla
