#include "base/log.h"

#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

TEST(Log, shows_rank_and_level_and_leaves_out_what_is_below_the_level) {
  std::vector<std::string> lines;
  Logger logger(LogLevel::kWarning, 3,
                [&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  logger.Info("hidden");
  logger.Warning("seen");

  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "rabit[3]: warning: seen");
}

TEST(Log, a_text_is_one_line_that_steers_no_terminal) {
  std::string line;
  Logger logger(LogLevel::kWarning, 0, [&](LogLevel, std::string_view text) { line = text; });
  logger.Warning("'w\x1b[2J\nrabit[9]: error: all is well'");

  EXPECT_EQ(line, "rabit[0]: warning: 'w\\x1b[2J\\nrabit[9]: error: all is well'");
}

TEST(Log, off_writes_nothing) {
  int lines = 0;
  Logger logger(LogLevel::kOff, -1, [&](LogLevel, std::string_view) { ++lines; });
  logger.Error("hidden");
  logger.Write(LogLevel::kOff, "hidden too");

  EXPECT_EQ(lines, 0);
}

TEST(Log, rate_limit_counts_what_it_keeps_back) {
  RateLimit hour(std::chrono::hours(1));
  uint64_t suppressed = 99;
  EXPECT_TRUE(hour.Allow(&suppressed));
  EXPECT_EQ(suppressed, 0u);
  EXPECT_FALSE(hour.Allow(&suppressed));

  RateLimit none(std::chrono::nanoseconds(0));
  EXPECT_TRUE(none.Allow(&suppressed));
}

}  // namespace
}  // namespace rabit
