// Lanes by class, in whole engines: a slow backend delays nobody else.
#include <pthread.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "testing/engine_job.h"
#include "testing/forwarding_backend.h"
#include "testing/pending_backend.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::InprocFabric;
using testing::JobOptions;
using testing::MakeRequest;
using testing::PendingBackend;
using testing::PlainBackend;
using testing::Soon;
using testing::TestJob;

constexpr BackendId kSlow = 1;

// A door in front of a backend.
class Door {
 public:
  void Open() {
    is_open_.store(true);
    changed_.Notify();
  }
  void Pass() {
    EXPECT_TRUE(changed_.Wait([this] { return is_open_.load(); }, Soon()));
  }

 private:
  std::atomic<bool> is_open_{false};
  WakeSignal changed_{std::chrono::microseconds(0)};
};

// Backend 1 stands behind the door.
JobOptions JobWithSlowBackend(int size, Door& door) {
  JobOptions options;
  options.limits.fusion_bytes = 0;
  options.limits.credit_bytes = 4096;
  options.more_backends = [fabric = std::make_shared<InprocFabric>(size), &door](int rank) {
    std::vector<std::unique_ptr<Backend>> more;
    more.push_back(std::make_unique<PendingBackend>(
        std::make_unique<PlainBackend>(fabric->Connect(rank)), [&door] { door.Pass(); }));
    return more;
  };
  return options;
}

struct Sum {
  Sum(std::string name, BackendId backend, int32_t priority)
      : values(100, 1.0f), request(MakeRequest(std::move(name), Kind::kAllreduce, values)) {
    request.signature.backend = backend;
    request.signature.priority = priority;
    request.output = request.input;
  }

  std::vector<float> values;
  Request request;
  Handle handle;
};

// 20 on the slow backend, the most urgent, then as many on the other.
std::vector<std::unique_ptr<Sum>> SubmitBoth(Engine& engine) {
  std::vector<std::unique_ptr<Sum>> sums;
  for (int i = 0; i < 40; ++i) {
    const bool is_slow = i < 20;
    const std::string name = (is_slow ? "slow" : "fast") + std::to_string(i);
    Sum& sum = *sums.emplace_back(
        std::make_unique<Sum>(name, is_slow ? kSlow : kAnyBackend, is_slow ? 9 : 0));
    EXPECT_OK(engine.Submit({&sum.request, 1}, {&sum.handle, 1}));
  }
  return sums;
}

void ExpectRight(Engine& engine, const Sum& sum, int size) {
  EXPECT_OK(engine.Wait(sum.handle, Soon()));
  EXPECT_EQ(sum.values, std::vector<float>(100, static_cast<float>(size)));
}

TEST(LanesByClass, a_backend_that_hangs_delays_no_operation_of_another) {
  constexpr int kSize = 3;
  for (const int fan_out : {0, 1}) {
    Door door;
    JobOptions options = JobWithSlowBackend(kSize, door);
    options.fan_out = fan_out;
    std::atomic<int> ranks_through{0};
    TestJob(kSize, std::move(options)).Run([&](Engine& engine, int) {
      const auto sums = SubmitBoth(engine);
      for (size_t i = 20; i < 40; ++i) ExpectRight(engine, *sums[i], kSize);
      for (size_t i = 0; i < 20; ++i) EXPECT_FALSE(*engine.IsDone(sums[i]->handle));
      EXPECT_NE(engine.StatisticsJson().find("\"queued\":10"), std::string::npos);

      if (++ranks_through == kSize) door.Open();
      for (size_t i = 0; i < 20; ++i) ExpectRight(engine, *sums[i], kSize);
    });
  }
}

// That the test above can fail: where both share lanes and credit, the fast ones wait.
TEST(LanesByClass, backends_that_share_lanes_delay_each_other) {
  Door door;
  JobOptions options = JobWithSlowBackend(2, door);
  options.shares_lanes = true;
  std::atomic<int> ranks_through{0};
  TestJob(2, std::move(options)).Run([&](Engine& engine, int) {
    const auto sums = SubmitBoth(engine);
    const Status status = engine.Wait(sums[39]->handle, After(std::chrono::milliseconds(200)));
    EXPECT_EQ(status.code(), Code::kTimedOut);
    if (++ranks_through == 2) door.Open();
    for (const auto& sum : sums) ExpectRight(engine, *sum, 2);
  });
}

// A rank that is outside of a group counts its buckets, class by class, without running them.
TEST(LanesByClass, groups_without_a_rank_do_not_hold_up_its_credit) {
  Door door;
  JobOptions options = JobWithSlowBackend(3, door);
  options.limits.credit_bytes = 400;
  std::atomic<int> ranks_through{0};
  TestJob(3, std::move(options)).Run([&](Engine& engine, int rank) {
    const Result<GroupId> pair = engine.AddGroup(std::vector<int>{0, 1}, Soon());
    ASSERT_OK(pair);
    std::vector<std::unique_ptr<Sum>> in_pair;
    if (rank < 2) {
      for (int i = 0; i < 10; ++i) {
        Sum& sum = *in_pair.emplace_back(
            std::make_unique<Sum>("p" + std::to_string(i), i % 2 == 0 ? kSlow : kAnyBackend, 0));
        sum.request.signature.group = *pair;
        EXPECT_OK(engine.Submit({&sum.request, 1}, {&sum.handle, 1}));
      }
    }
    const auto sums = SubmitBoth(engine);
    for (size_t i = 20; i < 40; ++i) ExpectRight(engine, *sums[i], 3);
    if (++ranks_through == 3) door.Open();
    for (size_t i = 0; i < 20; ++i) ExpectRight(engine, *sums[i], 3);
    for (const auto& sum : in_pair) ExpectRight(engine, *sum, 2);
  });
}

// Tells on which thread it is called, and then opens the door.
class NameTaker final : public testing::ForwardingBackend {
 public:
  NameTaker(std::unique_ptr<Backend> inner, std::set<std::string>& names, Door& door)
      : ForwardingBackend(std::move(inner)), names_(names), door_(door) {}

  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    char name[16] = {};
    EXPECT_EQ(::pthread_getname_np(::pthread_self(), name, sizeof name), 0);
    names_.insert(name);
    door_.Open();
    return ForwardingBackend::Allreduce(lane, in_out, op);
  }

 private:
  std::set<std::string>& names_;
  Door& door_;
};

TEST(LanesByClass, who_looks_at_the_threads_of_a_process_sees_whose_they_are) {
  std::set<std::string> names;
  Door door;
  JobOptions options;
  options.more_backends = [&names, &door, fabric = std::make_shared<InprocFabric>(1)](int rank) {
    std::vector<std::unique_ptr<Backend>> more;
    more.push_back(std::make_unique<NameTaker>(
        std::make_unique<PlainBackend>(fabric->Connect(rank)), names, door));
    return more;
  };
  TestJob(1, std::move(options)).Run([&door](Engine& engine, int) {
    Sum sum("s", kSlow, 0);
    EXPECT_OK(engine.Submit({&sum.request, 1}, {&sum.handle, 1}));
    door.Pass();  // before this thread could do the lane's work
    EXPECT_OK(engine.Wait(sum.handle, Soon()));
  });
  EXPECT_EQ(names, std::set<std::string>{"rabit-backend1"});
}

}  // namespace
}  // namespace rabit
