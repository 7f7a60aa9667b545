#include "engine/stall_monitor.h"

#include <string>
#include <vector>

#include "base/clock.h"
#include "testing/test.h"

namespace rabit {
namespace {

class WaitingController final : public Controller {
 public:
  explicit WaitingController(std::vector<std::string> lines) : lines_(std::move(lines)) {}

  Status Announce(const Announcement&) override { return Status(); }
  Result<std::optional<Agreement>> Await(Deadline) override { return std::optional<Agreement>(); }
  void Wake() override {}
  void Abandon(const Status&) override {}
  void Refuse(const TensorKey&, const Status&) override {}
  void FailBackend(const BackendFailure&) override {}
  void Compare(const ScheduleDigest&) override {}
  void AddGroup(const Group&) override {}
  void RemoveGroup(GroupId) override {}
  void WriteStatistics(JsonWriter&) const override {}
  std::vector<std::string> Waiting() const override { return lines_; }

 private:
  const std::vector<std::string> lines_;
};

constexpr int64_t kSecond = 1'000'000'000;

Deadline At(int64_t seconds) { return Deadline(std::chrono::seconds(seconds)); }

TEST(StallMonitor, reports_of_one_stall_become_rare_and_the_next_stall_is_reported_at_once) {
  std::vector<std::string> lines;
  const Logger logger(LogLevel::kWarning, 0,
                      [&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  StallMonitor monitor(logger, 10'000, 1'800'000);
  const WaitingController controller({"'w' waits 10.0 s for rank 1"});
  std::vector<int64_t> reported;
  for (int64_t second = 100; second < 300; ++second) {
    const int64_t before = monitor.reports();
    const int64_t oldest = second < 250 ? 100 : 250;  // what has waited for 150 s finishes
    monitor.Check(controller, oldest * kSecond, 1, At(second));
    if (monitor.reports() > before) reported.push_back(second);
  }

  EXPECT_EQ(reported, (std::vector<int64_t>{110, 120, 140, 180, 260, 270, 290}));
  ASSERT_EQ(lines.size(), 2 * reported.size());
  EXPECT_EQ(lines[0],
            "rabit[0]: warning: stall: 1 tensor has waited 10 s for ranks that have not submitted "
            "it. See what "
            "they are doing; the job fails after 1800 s (RABIT_STALL_ABORT, --stall-abort).");
  EXPECT_EQ(lines[1], "rabit[0]: warning: stall: 'w' waits 10.0 s for rank 1");
}

TEST(StallMonitor, the_headline_counts_the_lines_below_it) {
  std::vector<std::string> lines;
  const Logger logger(LogLevel::kWarning, 0,
                      [&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  StallMonitor monitor(logger, 10'000, 0);
  monitor.Check(WaitingController({"'a'", "'b\nc'"}), 100 * kSecond, 1, At(125));

  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0],
            "rabit[0]: warning: stall: 2 tensors have waited up to 25 s for ranks that have not "
            "submitted them. "
            "See what they are doing; no time limit ends this (RABIT_STALL_ABORT is 0).");
  EXPECT_EQ(lines[2], "rabit[0]: warning: stall: 'b\\nc'");
}

}  // namespace
}  // namespace rabit
