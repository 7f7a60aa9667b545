// The part of DLPack's C exchange interface that is read here.
//
// Declared here so that nothing is compiled against a framework: a type that offers the interface
// holds its table in a capsule.  Layout of DLPack 1.x; another major version is not read.
// Source: DLPack, "Python specification" and "C exchange API", version 1.3, 2025.
#pragma once

#include <cstdint>

namespace rabit::dlpack {

constexpr uint32_t kMajorVersion = 1;
constexpr int32_t kCpu = 1;
constexpr int32_t kCuda = 2;
constexpr uint64_t kReadOnly = 1;  // in Managed::flags

struct Device {
  int32_t kind;
  int32_t index;
};

struct DataType {
  uint8_t code;  // 0 int, 1 uint, 2 float, 4 bfloat, 6 bool
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct Managed {
  Version version;
  void* context;
  void (*deleter)(Managed* self);
  uint64_t flags;
  Tensor tensor;
};

// Objects are PyObject*; 0 is success, otherwise a Python exception is set.
struct ExchangeApi {
  Version version;
  ExchangeApi* older;
  void* allocate;
  int (*managed_from_object)(void* object, Managed** managed);
  void* object_from_managed;
  // May be null.  What it fills belongs to the object and lives as long as that is not changed.
  int (*tensor_from_object)(void* object, Tensor* tensor);
  int (*current_work_stream)(int32_t device_kind, int32_t device_index, void** stream);
};

constexpr char kAttribute[] = "__dlpack_c_exchange_api__";
constexpr char kCapsule[] = "dlpack_exchange_api";

}  // namespace rabit::dlpack
