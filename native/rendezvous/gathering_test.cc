#include "rendezvous/gathering.h"

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "testing/memory_store.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

// Counts what is asked of the store beneath.
class CountingStore final : public Store {
 public:
  Status Set(std::string_view key, std::string_view value) override {
    ++questions;
    return beneath_.Set(key, value);
  }
  Result<Versioned> Watch(std::string_view key, uint64_t seen, Deadline deadline) override {
    ++questions;
    return beneath_.Watch(key, seen, deadline);
  }
  Result<Swap> CompareAndSet(std::string_view key, uint64_t version,
                             std::string_view value) override {
    ++questions;
    return beneath_.CompareAndSet(key, version, value);
  }

  std::atomic<int> questions{0};

 private:
  testing::MemoryStore beneath_;
};

TEST(Gathering, every_rank_gets_all_words_in_order_for_three_questions_each) {
  CountingStore store;
  const std::vector<int> ranks = {2, 3, 5, 9, 11, 12, 13, 20};
  const std::vector<std::string> words = {"a", "", "c c", "d", "e", "f", "g", "h"};
  testing::RunRanks(static_cast<int>(ranks.size()), [&](int index) {
    const auto place = static_cast<size_t>(index);
    const auto all =
        GatherWords(store, "7/words/", ranks, ranks[place], words[place], testing::Soon());
    ASSERT_OK(all);
    EXPECT_EQ(*all, words);
  });
  EXPECT_LE(store.questions.load(), 3 * static_cast<int>(ranks.size()));
}

TEST(Gathering, a_rank_alone_asks_nobody) {
  CountingStore store;
  const auto all = GatherWords(store, "k/", std::vector<int>{4}, 4, "mine", testing::Soon());
  ASSERT_OK(all);
  EXPECT_EQ(*all, std::vector<std::string>{"mine"});
  EXPECT_EQ(store.questions.load(), 0);
}

TEST(Gathering, who_is_missing_is_named) {
  testing::MemoryStore store;
  ASSERT_OK(store.Set("k/1", "here"));
  const auto all = GatherWords(store, "k/", std::vector<int>{0, 1, 2}, 0, "mine",
                               After(std::chrono::milliseconds(20)));
  EXPECT_EQ(all.status().code(), Code::kTimedOut);
  EXPECT_EQ(all.status().culprit(), 2);
  EXPECT_TRUE(all.status().message().find("k/2") != std::string::npos) << all.status();
}

TEST(Gathering, words_of_more_bytes_than_a_value_come_in_several) {
  CountingStore store;
  std::vector<int> ranks;
  std::vector<std::string> words;
  for (int rank = 0; rank < 20; ++rank) {
    ranks.push_back(rank);
    words.emplace_back(static_cast<size_t>(rank) * 1000, 'x');
  }
  testing::RunRanks(20, [&](int rank) {
    const auto all =
        GatherWords(store, "k/", ranks, rank, words[static_cast<size_t>(rank)], testing::Soon());
    ASSERT_OK(all);
    EXPECT_TRUE(*all == words);
  });
  EXPECT_LE(store.questions.load(), 6 * 20);
}

TEST(Gathering, a_rank_whose_lowest_has_not_come_names_it_and_no_other) {
  testing::MemoryStore store;
  const auto key_of = [](int rank) { return "k/" + std::to_string(rank); };
  for (int rank = 1; rank < 3; ++rank) ASSERT_OK(store.Set(key_of(rank), "here"));
  const std::vector<int> ranks = {0, 1, 2, 3};
  const auto missing = [&] {
    return CollectWords(store, key_of, "k/all", ranks, 1, After(std::chrono::milliseconds(-1000)))
        .status();
  };
  EXPECT_EQ(missing().code(), Code::kTimedOut);
  EXPECT_EQ(missing().culprit(), 0);
  // The lowest is there, and waits for another one longer than this rank does.
  ASSERT_OK(store.Set("k/0", "here"));
  EXPECT_EQ(missing().culprit(), 3);
  ASSERT_OK(store.Set("k/3", "here"));
  EXPECT_EQ(missing().culprit(), 0);
}

TEST(Gathering, words_that_cannot_be_told_apart_are_refused) {
  testing::MemoryStore store;
  const std::vector<int> ranks = {0, 1};
  EXPECT_EQ(GatherWords(store, "k/", ranks, 0,
                        "a\x1e"
                        "b",
                        testing::Soon())
                .status()
                .code(),
            Code::kInvalidArgument);
  ASSERT_OK(store.Set("k/all",
                      "1\x1e"
                      "a\x1e"));
  const auto all = GatherWords(store, "k/", ranks, 1, "b", testing::Soon());
  EXPECT_EQ(all.status().code(), Code::kMismatch);
  EXPECT_TRUE(all.status().message().find("1 words under 'k/all' for 2 ranks") != std::string::npos)
      << all.status();
}

}  // namespace
}  // namespace rabit
