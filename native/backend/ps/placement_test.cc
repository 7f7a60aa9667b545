#include "backend/ps/placement.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

std::vector<double> Even(int places) {
  return std::vector<double>(static_cast<size_t>(places), 1.0 / places);
}

int64_t Imbalance(const Placement& placement) {
  const auto [least, most] =
      std::minmax_element(placement.bytes_of().begin(), placement.bytes_of().end());
  return *most - *least;
}

TEST(Placement, a_large_tensor_is_divided_among_all_servers) {
  Placement placement(Even(3));

  const std::vector<Slice> slices = placement.Place(1'000'001, DType::kFloat32);

  const std::vector<Slice> expected = {
      {0, 0, 333'334}, {1, 333'334, 333'333}, {2, 666'667, 333'334}};
  EXPECT_TRUE(slices == expected);
}

TEST(Placement, small_tensors_go_to_the_server_with_the_least_bytes) {
  Placement placement(Even(2));

  EXPECT_EQ(placement.Place(1000, DType::kFloat32)[0].place, 0);
  EXPECT_EQ(placement.Place(10, DType::kFloat32)[0].place, 1);
  EXPECT_EQ(placement.Place(10, DType::kFloat32)[0].place, 1);
  EXPECT_EQ(placement.Place(2000, DType::kFloat16)[0].place, 1);
  EXPECT_EQ(placement.Place(1, DType::kUint8)[0].place, 0);
}

TEST(Placement, tensors_of_all_sizes_are_spread_evenly) {
  Placement placement(Even(4));
  int64_t largest = 0;
  uint64_t state = 7;
  for (int i = 0; i < 1000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto count = static_cast<int64_t>((state >> 33) % 200'000);
    for (const Slice& slice : placement.Place(count, DType::kFloat32)) {
      largest = std::max(largest, slice.count * 4);
    }
  }
  EXPECT_LE(Imbalance(placement), largest);
}

TEST(Placement, a_share_is_what_a_place_gets_of_tensors_of_all_sizes) {
  const std::vector<double> shares = {0.5, 0, 0.125, 0.375};
  Placement placement(shares);
  int64_t total = 0;
  uint64_t state = 7;
  for (int i = 0; i < 1000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto count = static_cast<int64_t>((state >> 33) % 200'000);
    (void)placement.Place(count, DType::kFloat32);
    total += 4 * count;
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    const double part = static_cast<double>(placement.bytes_of()[i]) / static_cast<double>(total);
    EXPECT_LE(std::abs(part - shares[i]), 0.001) << i;
  }
}

TEST(Placement, slices_cover_every_element_once) {
  Placement placement(Even(5));
  for (const int64_t count : {0, 1, 4, 5, 8191, 8192, 16'385, 100'000}) {
    int64_t next = 0;
    for (const Slice& slice : placement.Place(count, DType::kFloat64)) {
      EXPECT_EQ(slice.begin, next);
      EXPECT_GT(slice.count, 0);
      next += slice.count;
    }
    EXPECT_EQ(next, count);
  }
}

}  // namespace
}  // namespace rabit
