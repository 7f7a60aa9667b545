// Tensors of a device whose images find no room in pinned memory; ranks are threads.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "testing/device_job.h"
#include "testing/device_tensor.h"
#include "testing/engine_job.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::DeviceJob;
using testing::DeviceTensor;
using testing::DeviceWay;
using testing::EmulatedTrouble;
using testing::JobOptions;
using testing::kBothWays;
using testing::MakeRequest;
using testing::RunOn;
using testing::Soon;
using Floats = std::vector<float>;

constexpr size_t kBudget = 1 << 20;
constexpr size_t kFloats = 500'001;  // of floats, twice the budget

JobOptions WithBudget() {
  JobOptions options;
  options.engine.pinned_bytes = kBudget;
  options.limits.partition_bytes = 1 << 30;
  return options;
}

int64_t Pinned(const Engine& engine, const std::string& name) {
  const std::string json = engine.StatisticsJson();
  const std::string key = "\"" + name + "\":";
  const size_t at = json.find(key, json.find("\"pinned\":"));
  return at == std::string::npos ? -1 : std::stoll(json.substr(at + key.size()));
}

TEST(PinnedBudget, sums_are_right_and_the_budget_is_kept) {
  for (const DeviceWay way : {DeviceWay::kStaged, DeviceWay::kNccl}) {
    EmulatedTrouble trouble(21, 200);
    DeviceJob job(way, 2, WithBudget());
    job.Run([&](Engine& engine, int rank) {
      std::vector<std::unique_ptr<DeviceTensor>> tensors;
      std::vector<Request> requests;
      for (int i = 0; i < 6; ++i) {
        const size_t count = i % 2 == 0 ? kFloats : 1000;
        tensors.push_back(
            std::make_unique<DeviceTensor>(rank, Floats(count, static_cast<float>(rank + i))));
        requests.push_back(tensors.back()->InPlace(Kind::kAllreduce, "t" + std::to_string(i)));
      }
      std::vector<Handle> handles(requests.size());
      ASSERT_OK(engine.Submit(requests, handles));
      for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
      for (size_t i = 0; i < tensors.size(); ++i) {
        const Floats seen = tensors[i]->Read();
        EXPECT_EQ(seen, Floats(seen.size(), static_cast<float>(2 * i + 1)));
      }
      EXPECT_EQ(Pinned(engine, "limit_bytes"), static_cast<int64_t>(kBudget));
      EXPECT_TRUE(Pinned(engine, "held_bytes_max") <= static_cast<int64_t>(kBudget));
      EXPECT_EQ(Pinned(engine, "without_room") > 0, way == DeviceWay::kStaged);
    });
  }
}

// Nobody has given an output: the engine makes one, in the memory of the host.
TEST(PinnedBudget, a_result_for_the_host_goes_through_pieces) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(22, 200);
    DeviceJob job(way, 2, WithBudget());
    job.Run([&](Engine& engine, int rank) {
      const DeviceTensor part(rank, Floats(kFloats, static_cast<float>(rank)));
      std::vector<Request> requests = {part.As(Kind::kAllgather, "g")};
      std::vector<Handle> handles(1);
      ASSERT_OK(engine.Submit(requests, handles));
      ASSERT_OK(engine.Wait(handles[0], Soon()));
      const TensorView all = engine.Output(handles[0]).value().view;
      ASSERT_EQ(all.count, static_cast<int64_t>(2 * kFloats));
      const auto* const values = static_cast<const float*>(all.data);
      EXPECT_EQ(Floats(values, values + kFloats), Floats(kFloats, 0.0f));
      EXPECT_EQ(Floats(values + kFloats, values + 2 * kFloats), Floats(kFloats, 1.0f));
      EXPECT_TRUE(Pinned(engine, "without_room") > 0);
      engine.Release(handles[0]);
    });
  }
}

// What a rank that has joined contributes is copied from one piece.
TEST(PinnedBudget, a_rank_that_has_joined_adds_nothing) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(23, 200);
    DeviceJob job(way, 2, WithBudget());
    job.Run([&](Engine& engine, int rank) {
      if (rank == 0) {
        const DeviceTensor tensor(rank, Floats(kFloats, 3.0f));
        EXPECT_OK(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "alone")));
        EXPECT_EQ(tensor.Read(), Floats(kFloats, 3.0f));
      }
      Floats nothing;
      (void)testing::RunOne<float>(engine, MakeRequest("join", Kind::kJoin, nothing));
    });
  }
}

// Between hosts go pieces, each of which has to fit.
TEST(PinnedBudget, pieces_between_hosts_share_an_image) {
  EmulatedTrouble trouble(24, 200);
  DeviceJob job(DeviceWay::kHierarchical, 4, WithBudget());
  job.Run([&](Engine& engine, int rank) {
    const DeviceTensor tensor(rank, Floats(4 * kFloats, static_cast<float>(rank)));
    EXPECT_OK(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "t")));
    EXPECT_EQ(tensor.Read(), Floats(4 * kFloats, 6.0f));
    EXPECT_TRUE(Pinned(engine, "held_bytes_max") <= static_cast<int64_t>(kBudget));
  });
}

}  // namespace
}  // namespace rabit
