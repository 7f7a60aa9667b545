// Placement: who sums which part of a tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace rabit {

// Elements begin … begin + count - 1 of a tensor, summed by one process.
struct Slice {
  int place = 0;  // among those that sum
  int64_t begin = 0;
  int64_t count = 0;
  int64_t chunk_count = 0;  // elements that travel together; 0: as whoever pushes them likes

  bool operator==(const Slice&) const = default;
};

// Counts the bytes that each place has got: a large tensor is divided among all by their shares, a
// small one goes to those that have got least for their share.  Whoever places the same tensors in
// the same order places them alike.  One thread at a time.
class Placement {
 public:
  // A tensor is divided among at most so many that a slice of an equal share is not smaller.
  static constexpr int64_t kSliceBytesMin = 32 << 10;

  // `shares` add up to 1; a place whose share is 0 gets nothing.
  explicit Placement(std::vector<double> shares);

  // In the order of the elements; nothing for no elements.
  std::vector<Slice> Place(int64_t count, DType dtype);
  const std::vector<int64_t>& bytes_of() const { return bytes_of_; }

 private:
  const std::vector<double> shares_;
  std::vector<int> open_;  // places with a share
  std::vector<int64_t> bytes_of_;
};

}  // namespace rabit
