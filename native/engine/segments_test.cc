#include "engine/segments.h"

#include <memory>
#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

using Items = std::vector<BucketItem>;

std::shared_ptr<const AgreedTensor> Tensor() { return std::make_shared<AgreedTensor>(); }

BucketItem Item(const std::shared_ptr<const AgreedTensor>& tensor, int64_t offset, int64_t count) {
  return {Partition{0, offset, count, false}, tensor};
}

TEST(Segments, partitions_of_one_tensor_become_one) {
  const auto tensor = Tensor();
  const Items items = {Item(tensor, 10, 5), Item(tensor, 15, 5), Item(tensor, 20, 1)};

  const std::vector<Segment> segments = SegmentsOf(items, 4, {1000});

  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].items.size(), 3u);
  EXPECT_EQ(segments[0].count, 11);
  EXPECT_TRUE(segments[0].is_contiguous);
}

TEST(Segments, partitions_with_a_gap_are_joined_by_copying) {
  const auto tensor = Tensor();
  const Items items = {Item(tensor, 0, 5), Item(tensor, 10, 5)};

  const std::vector<Segment> segments = SegmentsOf(items, 4, {1000});

  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].count, 10);
  EXPECT_FALSE(segments[0].is_contiguous);
}

TEST(Segments, large_tensors_stay_alone_between_joined_small_ones) {
  const auto large = Tensor();
  const Items items = {Item(Tensor(), 0, 10), Item(Tensor(), 0, 10), Item(large, 0, 100),
                       Item(large, 100, 150), Item(Tensor(), 0, 10)};

  const std::vector<Segment> segments = SegmentsOf(items, 4, {1000});

  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].items.size(), 2u);
  EXPECT_FALSE(segments[0].is_contiguous);
  EXPECT_EQ(segments[1].count, 250);
  EXPECT_TRUE(segments[1].is_contiguous);
  EXPECT_EQ(segments[2].items.size(), 1u);
  EXPECT_TRUE(segments[2].is_contiguous);
}

TEST(Segments, small_tensors_are_joined_up_to_the_limit) {
  const Items items = {Item(Tensor(), 0, 10), Item(Tensor(), 0, 10), Item(Tensor(), 0, 5),
                       Item(Tensor(), 0, 30), Item(Tensor(), 0, 1)};

  const std::vector<Segment> segments = SegmentsOf(items, 4, {1000, 100});

  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].count, 25);  // which is the limit
  EXPECT_EQ(segments[0].items.size(), 3u);
  EXPECT_EQ(segments[1].count, 30);  // more than the limit, and not to be had in less
  EXPECT_EQ(segments[2].count, 1);
}

TEST(Segments, no_items_make_no_segments) { EXPECT_TRUE(SegmentsOf({}, 4, {1000}).empty()); }

}  // namespace
}  // namespace rabit
