// Placement: which server sums which part of a tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace rabit {

// Elements begin … begin + count - 1 of a tensor, summed by one server.
struct Slice {
  int server = 0;
  int64_t begin = 0;
  int64_t count = 0;

  bool operator==(const Slice&) const = default;
};

// Counts the bytes that each server has got: a large tensor is divided among all of them, a small
// one goes to those that have got least.  Whoever places the same tensors in the same order places
// them alike.  One thread at a time.
class Placement {
 public:
  // A slice is not smaller, but for a tensor that is.
  static constexpr int64_t kSliceBytesMin = 32 << 10;

  explicit Placement(int servers) : bytes_of_(static_cast<size_t>(servers)) {}

  // In the order of the elements; nothing for no elements.
  std::vector<Slice> Place(int64_t count, DType dtype);
  const std::vector<int64_t>& bytes_of() const { return bytes_of_; }

 private:
  std::vector<int64_t> bytes_of_;
};

}  // namespace rabit
