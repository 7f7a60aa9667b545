// TensorMemory: where a tensor of any framework lies, read without calling into Python code.
#pragma once

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <array>
#include <cstdint>

#include "include/rabit_abi.h"

namespace rabit::python {

constexpr int kDimensionsMax = 8;  // of rabit_tensor

// Reads where a tensor in row-major order lies, in the memory of the CPU or of CUDA: through
// DLPack's C exchange interface where the type has it (torch since 2.10), else through the buffer
// protocol (NumPy).
// Holds the buffer, if there is one, until it is destroyed; the caller holds the object.
//
// With the GIL.  Never leaves a Python exception.
class TensorMemory {
 public:
  TensorMemory() = default;
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  // False if it cannot be read so, or `is_written` and it is read-only; the caller then goes
  // another way, which works or says why.
  [[nodiscard]] bool Read(PyObject* object, bool is_written);

  // Of the same type, extents and device, as a request that was made for another tensor says.
  [[nodiscard]] bool IsLike(const rabit_tensor& tensor) const;

  // Gives `tensor`, which it is like, this memory.
  void Place(rabit_tensor& tensor) const;

  bool is_on_host() const;
  void* data() const { return data_; }
  int64_t count() const { return count_; }
  int32_t dtype() const { return dtype_; }
  int32_t ndim() const { return ndim_; }
  const int64_t* shape() const { return shape_.data(); }

 private:
  bool ReadExchange(PyObject* object, const void* api);
  bool ReadBuffer(PyObject* object, bool is_written);

  Py_buffer buffer_{};
  bool has_buffer_ = false;
  void* data_ = nullptr;
  int64_t count_ = 0;
  int32_t dtype_ = 0;
  int32_t ndim_ = 0;
  int32_t device_kind_ = 0;
  int32_t device_index_ = 0;
  void* stream_ = nullptr;  // on which the producer uses the device now
  std::array<int64_t, kDimensionsMax> shape_{};
};

// True if the type of `object` offers DLPack's C exchange interface in a version that is read.
bool HasExchange(PyObject* object);

}  // namespace rabit::python
