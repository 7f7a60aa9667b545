#include "backend/ps/placement.h"

#include <algorithm>
#include <numeric>

namespace rabit {

std::vector<Slice> Placement::Place(int64_t count, DType dtype) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(dtype));
  const auto servers = static_cast<int64_t>(bytes_of_.size());
  const int64_t parts =
      std::min(std::clamp<int64_t>(count * element_bytes / kSliceBytesMin, 1, servers), count);
  std::vector<int> order(bytes_of_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](int a, int b) {
    return bytes_of_[static_cast<size_t>(a)] < bytes_of_[static_cast<size_t>(b)];
  });
  std::vector<Slice> slices;
  int64_t begin = 0;
  for (int64_t part = 0; part < parts; ++part) {
    // The first ones are one element longer, and go to those that have got least.
    const int64_t length = count / parts + (part < count % parts ? 1 : 0);
    const int server = order[static_cast<size_t>(part)];
    slices.push_back({server, begin, length});
    bytes_of_[static_cast<size_t>(server)] += length * element_bytes;
    begin += length;
  }
  return slices;
}

}  // namespace rabit
