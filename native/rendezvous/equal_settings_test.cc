#include "rendezvous/equal_settings.h"

#include <chrono>
#include <thread>
#include <vector>

#include "testing/memory_store.h"
#include "testing/run_ranks.h"
#include "testing/test.h"

namespace rabit {
namespace {

std::string Text(const char* scheduler, const char* source, const char* lanes = "0") {
  return std::string("scheduler\x1f") + scheduler + "\x1f" + source + "\x1elanes\x1f" + lanes +
         "\x1f" + "default";
}

TEST(EqualSettings, a_digest_is_of_names_and_values_alone) {
  EXPECT_EQ(SettingsDigest(Text("fifo", "RABIT_SCHEDULER")), SettingsDigest(Text("fifo", "code")));
  EXPECT_NE(SettingsDigest(Text("fifo", "code")), SettingsDigest(Text("priority", "code")));
  EXPECT_NE(SettingsDigest("a\x1f"
                           "bc\x1fs"),
            SettingsDigest("ab\x1f"
                           "c\x1fs"));
  EXPECT_EQ(SettingsDigest("").size(), 16u);
}

TEST(EqualSettings, differences_name_values_ranks_and_sources) {
  const std::vector<std::string> settings = {
      Text("priority", "default"), Text("fifo", "RABIT_SCHEDULER"), Text("priority", "file.toml"),
      "", Text("fifo", "RABIT_SCHEDULER", "3")};

  EXPECT_EQ(DescribeDifferences(settings),
            "scheduler is priority on ranks 0, 2 (default, file.toml) and fifo on ranks 1, 4 "
            "(RABIT_SCHEDULER); lanes is 0 on ranks 0-2 (default) and 3 on rank 4 (default)");
}

TEST(EqualSettings, equal_settings_have_no_differences) {
  const std::vector<std::string> settings = {Text("fifo", "a"), Text("fifo", "b")};

  EXPECT_EQ(DescribeDifferences(settings), "");
}

TEST(EqualSettings, every_rank_gets_the_same_mismatch) {
  constexpr int kSize = 4;
  testing::MemoryStore store;
  std::vector<Status> refused(kSize);

  testing::RunRanks(kSize, [&](int rank) {
    const std::string mine = Text(rank == 2 ? "fifo" : "priority", "default");
    refused[static_cast<size_t>(rank)] =
        RefuseSettings(store, "1/settings/", rank, kSize, mine, After(std::chrono::seconds(20)));
  });

  for (const Status& each : refused) {
    EXPECT_EQ(each.code(), Code::kMismatch);
    EXPECT_EQ(each.message(), refused[0].message());
    EXPECT_TRUE(each.message().find("priority on ranks 0, 1, 3 (default) and fifo on rank 2") !=
                std::string::npos);
  }
}

TEST(EqualSettings, a_rank_that_does_not_tell_its_own_is_named) {
  testing::MemoryStore store;
  const Status refused = RefuseSettings(store, "1/settings/", 0, 2, Text("fifo", "code"),
                                        After(std::chrono::milliseconds(20)));

  EXPECT_EQ(refused.code(), Code::kMismatch);
  EXPECT_TRUE(refused.message().find("not told by: 1") != std::string::npos);
}

}  // namespace
}  // namespace rabit
