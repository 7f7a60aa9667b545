#include "python/tensor_memory.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "python/dlpack.h"

namespace rabit::python {
namespace {

// What is known of a type.  Types live on: a freed one could come back at the same address.
struct KnownType {
  PyObject* type;
  const dlpack::ExchangeApi* api;  // null: it has none
  bool is_writable;
  bool was_asked;  // whether tensors of this type may be written
};

constexpr size_t kTypesMax = 64;

// Guarded by the GIL; the module is not loaded where there is none.
std::vector<KnownType>& KnownTypes() {
  static std::vector<KnownType> types;
  return types;
}

const dlpack::ExchangeApi* FindApi(PyObject* type) {
  PyObject* const capsule = PyObject_GetAttrString(type, dlpack::kAttribute);
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, dlpack::kCapsule));
  PyErr_Clear();
  Py_DECREF(capsule);  // The table lives as long as the process.
  while (api != nullptr && api->version.major != dlpack::kMajorVersion) api = api->older;
  const bool is_complete = api != nullptr && api->tensor_from_object != nullptr &&
                           api->managed_from_object != nullptr;
  return is_complete ? api : nullptr;
}

// Null if there are too many types to remember another.
KnownType* Find(PyObject* object) {
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  std::vector<KnownType>& types = KnownTypes();
  for (KnownType& known : types) {
    if (known.type == type) return &known;
  }
  if (types.size() >= kTypesMax) return nullptr;
  Py_INCREF(type);
  types.push_back({type, FindApi(type), false, false});
  return &types.back();
}

// The tensors of a type are all writable or none: the quick description of one does not say.
bool IsWritable(KnownType& known, PyObject* object) {
  if (known.was_asked) return known.is_writable;
  dlpack::Managed* managed = nullptr;
  if (known.api->managed_from_object(object, &managed) != 0 || managed == nullptr) {
    PyErr_Clear();
    return false;
  }
  known.was_asked = true;
  known.is_writable = (managed->flags & dlpack::kReadOnly) == 0;
  if (managed->deleter != nullptr) managed->deleter(managed);
  return known.is_writable;
}

// -1: not one of ours.
int32_t DtypeOf(dlpack::DataType type) {
  if (type.lanes != 1) return -1;
  switch (type.code << 8 | type.bits) {
    case 0 << 8 | 8: return RABIT_INT8;
    case 0 << 8 | 16: return RABIT_INT16;
    case 0 << 8 | 32: return RABIT_INT32;
    case 0 << 8 | 64: return RABIT_INT64;
    case 1 << 8 | 8: return RABIT_UINT8;
    case 1 << 8 | 16: return RABIT_UINT16;
    case 2 << 8 | 16: return RABIT_FLOAT16;
    case 2 << 8 | 32: return RABIT_FLOAT32;
    case 2 << 8 | 64: return RABIT_FLOAT64;
    case 4 << 8 | 16: return RABIT_BFLOAT16;
    case 6 << 8 | 8: return RABIT_BOOL;
    default: return -1;
  }
}

int32_t DtypeOf(const Py_buffer& buffer) {
  const char* const format = buffer.format == nullptr ? "B" : buffer.format;
  if (format[0] == '\0' || format[1] != '\0') return -1;  // among others another byte order
  switch (format[0]) {
    case '?': return RABIT_BOOL;
    case 'b': return RABIT_INT8;
    case 'B': return RABIT_UINT8;
    case 'h': return RABIT_INT16;
    case 'H': return RABIT_UINT16;
    case 'i': return RABIT_INT32;
    case 'l':
    case 'q': return buffer.itemsize == 8 ? RABIT_INT64 : -1;
    case 'e': return RABIT_FLOAT16;
    case 'f': return RABIT_FLOAT32;
    case 'd': return RABIT_FLOAT64;
    default: return -1;
  }
}

bool IsRowMajor(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int32_t axis = tensor.ndim; axis-- > 0;) {
    if (tensor.shape[axis] == 0) return true;
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) return false;
    expected *= tensor.shape[axis];
  }
  return true;
}

}  // namespace

TensorMemory::~TensorMemory() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
}

bool TensorMemory::Read(PyObject* object, bool is_written) {
  KnownType* const known = Find(object);
  if (known == nullptr) return false;
  bool is_read = false;
  if (known->api == nullptr) {
    is_read = ReadBuffer(object, is_written);
  } else {
    is_read = (!is_written || IsWritable(*known, object)) && ReadExchange(object, known->api);
  }
  if (!is_read) return false;
  count_ = 1;
  for (int32_t axis = 0; axis < ndim_; ++axis) count_ *= shape_[static_cast<size_t>(axis)];
  return true;
}

bool TensorMemory::ReadExchange(PyObject* object, const void* api) {
  dlpack::Tensor tensor{};
  const auto& exchange = *static_cast<const dlpack::ExchangeApi*>(api);
  if (exchange.tensor_from_object(object, &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  dtype_ = DtypeOf(tensor.dtype);
  const auto [kind, index] = tensor.device;
  const bool is_reached = kind == dlpack::kCpu || kind == dlpack::kCuda;
  if (!is_reached || tensor.ndim > kDimensionsMax || dtype_ < 0 || !IsRowMajor(tensor)) {
    return false;
  }
  device_kind_ = kind;
  if (kind == dlpack::kCuda) {
    device_index_ = index;
    if (exchange.current_work_stream == nullptr ||
        exchange.current_work_stream(kind, index, &stream_) != 0) {
      PyErr_Clear();
      return false;
    }
  }
  data_ = static_cast<char*>(tensor.data) + tensor.byte_offset;
  ndim_ = tensor.ndim;
  std::copy_n(tensor.shape, ndim_, shape_.begin());
  return true;
}

bool TensorMemory::ReadBuffer(PyObject* object, bool is_written) {
  const int wanted = PyBUF_ND | PyBUF_FORMAT | (is_written ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object, &buffer_, wanted) != 0) {
    PyErr_Clear();
    return false;
  }
  has_buffer_ = true;
  dtype_ = DtypeOf(buffer_);
  device_kind_ = dlpack::kCpu;
  if (buffer_.ndim > kDimensionsMax || dtype_ < 0) return false;
  data_ = buffer_.buf;
  ndim_ = buffer_.ndim;
  std::copy_n(buffer_.shape, ndim_, shape_.begin());
  return true;
}

bool TensorMemory::IsLike(const rabit_tensor& tensor) const {
  return device_kind_ == tensor.device_kind && device_index_ == tensor.device_index &&
         dtype_ == tensor.dtype && ndim_ == tensor.ndim && count_ == tensor.count &&
         std::equal(shape_.begin(), shape_.begin() + ndim_, tensor.shape);
}

void TensorMemory::Place(rabit_tensor& tensor) const {
  tensor.data = data_;
  tensor.stream = reinterpret_cast<uintptr_t>(stream_);
}

bool TensorMemory::is_on_host() const { return device_kind_ == dlpack::kCpu; }

bool HasExchange(PyObject* object) {
  const KnownType* const known = Find(object);
  return known != nullptr && known->api != nullptr;
}

}  // namespace rabit::python
