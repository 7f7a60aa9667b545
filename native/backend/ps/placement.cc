#include "backend/ps/placement.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace rabit {

Placement::Placement(std::vector<double> shares)
    : shares_(std::move(shares)), bytes_of_(shares_.size()) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i] > 0) open_.push_back(static_cast<int>(i));
  }
}

std::vector<Slice> Placement::Place(int64_t count, DType dtype) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(dtype));
  const auto parts = static_cast<size_t>(std::clamp<int64_t>(
      count * element_bytes / kSliceBytesMin, 1, static_cast<int64_t>(open_.size())));
  std::vector<int> order = open_;
  std::stable_sort(order.begin(), order.end(), [this](int a, int b) {
    const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    return static_cast<double>(bytes_of_[i]) * shares_[j] <
           static_cast<double>(bytes_of_[j]) * shares_[i];
  });
  order.resize(parts);
  double shares = 0;
  for (const int place : order) shares += shares_[static_cast<size_t>(place)];
  std::vector<Slice> slices;
  int64_t begin = 0;
  double until = 0;
  for (const int place : order) {
    until += shares_[static_cast<size_t>(place)];
    const bool is_last = place == order.back();
    const int64_t end =
        is_last ? count : std::llround(static_cast<double>(count) * (until / shares));
    if (end > begin) slices.push_back({place, begin, end - begin});
    bytes_of_[static_cast<size_t>(place)] += (end - begin) * element_bytes;
    begin = end;
  }
  return slices;
}

}  // namespace rabit
