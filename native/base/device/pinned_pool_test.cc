#include "base/device/pinned_pool.h"

#include <memory>
#include <utility>
#include <vector>

#include "testing/emulated_driver.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::emulation;
using testing::OpenEmulatedDriver;

constexpr size_t kLimit = 1 << 20;

// As long as the budget is used, what is idle is given back by another thread.
PinnedBlock TakeSoon(PinnedPool& pool, const std::shared_ptr<DeviceDriver>& driver, size_t bytes) {
  for (;;) {
    Result<PinnedBlock> block = pool.Take(driver, 0, bytes);
    if (!block.ok() || *block) return block.ok() ? std::move(*block) : PinnedBlock();
    std::this_thread::yield();
  }
}

TEST(PinnedPool, a_block_is_given_out_again_without_an_allocation) {
  const std::shared_ptr<DeviceDriver> driver = OpenEmulatedDriver();
  const auto pool = std::make_shared<PinnedPool>(kLimit);

  std::byte* const first = pool->Take(driver, 0, 10'000)->data();
  const int64_t held = emulation().counts().pinned;
  const PinnedBlock again = std::move(*pool->Take(driver, 1, 9'500));

  EXPECT_EQ(again.data(), first);
  EXPECT_TRUE(again.bytes() >= 9'500);
  EXPECT_EQ(emulation().counts().pinned, held);
}

TEST(PinnedPool, what_finds_no_room_is_refused_and_a_piece_is_not) {
  const std::shared_ptr<DeviceDriver> driver = OpenEmulatedDriver();
  const auto pool = std::make_shared<PinnedPool>(kLimit);

  const PinnedBlock most = std::move(*pool->Take(driver, 0, kLimit / 8 * 7));
  EXPECT_TRUE(static_cast<bool>(most));
  EXPECT_FALSE(static_cast<bool>(*pool->Take(driver, 0, 4096)));
  const PinnedBlock piece = std::move(*pool->TakePiece(driver, 0, kLimit));
  EXPECT_EQ(piece.bytes(), size_t{4096});
}

// A copy through 4 KiB is slow; a job that ends is worse.
TEST(PinnedPool, pieces_and_what_must_be_exceed_a_budget_that_is_in_use) {
  const std::shared_ptr<DeviceDriver> driver = OpenEmulatedDriver();
  const auto pool = std::make_shared<PinnedPool>(kLimit);
  std::vector<PinnedBlock> blocks;
  for (size_t taken = 0; taken < kLimit; taken += blocks.back().bytes()) {
    blocks.push_back(std::move(*pool->TakePiece(driver, 0, kLimit)));
  }

  const PinnedBlock piece = std::move(*pool->TakePiece(driver, 0, kLimit));
  EXPECT_EQ(piece.bytes(), size_t{4096});
  const PinnedBlock must = std::move(*pool->TakeAnyway(driver, 0, kLimit / 2));
  EXPECT_EQ(must.bytes(), kLimit / 2);
}

TEST(PinnedPool, a_piece_is_what_is_idle_if_nothing_else_is_left) {
  const std::shared_ptr<DeviceDriver> driver = OpenEmulatedDriver();
  const auto pool = std::make_shared<PinnedPool>(2 * kLimit);
  for (std::vector<PinnedBlock> small; small.size() < 2 * kLimit / 4096;) {
    small.push_back(std::move(*pool->TakePiece(driver, 0, 4096)));
  }
  const int64_t held = emulation().counts().pinned;

  // Pieces of this pool have 8 KiB, and no idle block has.
  const PinnedBlock piece = std::move(*pool->TakePiece(driver, 0, kLimit));

  EXPECT_EQ(piece.bytes(), size_t{4096});
  EXPECT_TRUE(emulation().counts().pinned <= held);
}

TEST(PinnedPool, what_exceeds_the_budget_frees_nothing) {
  const std::shared_ptr<DeviceDriver> driver = OpenEmulatedDriver();
  const auto pool = std::make_shared<PinnedPool>(kLimit);

  std::byte* const first = pool->Take(driver, 0, 10'000)->data();
  EXPECT_FALSE(static_cast<bool>(*pool->Take(driver, 0, 2 * kLimit)));
  const PinnedBlock again = std::move(*pool->Take(driver, 0, 10'000));

  EXPECT_EQ(again.data(), first);
}

TEST(PinnedPool, idle_blocks_make_room_for_other_sizes) {
  const auto before = emulation().counts();
  {
    const std::shared_ptr<DeviceDriver> driver = OpenEmulatedDriver();
    const auto pool = std::make_shared<PinnedPool>(kLimit);
    {
      std::vector<PinnedBlock> small;
      for (int i = 0; i < 100; ++i) small.push_back(std::move(*pool->Take(driver, 0, 8192)));
    }

    const PinnedBlock large = TakeSoon(*pool, driver, kLimit / 2);

    EXPECT_TRUE(static_cast<bool>(large));
  }
  EXPECT_EQ(emulation().counts().pinned, before.pinned);
}

}  // namespace
}  // namespace rabit
