#include "engine/route_memory.h"

#include "testing/engine_job.h"

namespace rabit {
namespace {

using testing::JobOptions;
using testing::TestJob;

TEST(RouteMemory, answers_as_the_router_does_at_first_and_again) {
  RouterOptions options;
  options.topology.host_of.assign(8, 0);
  const Router router(options);
  RouteMemory memory(router);
  Group groups[2];
  for (int i = 0; i < 2; ++i) {
    groups[i].id = i;
    groups[i].my_index = 0;
    for (int rank = 0; rank < (i == 0 ? 8 : 2); ++rank) groups[i].ranks.push_back(rank);
  }

  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const Kind kind : {Kind::kAllreduce, Kind::kAllgather, Kind::kBroadcast}) {
      for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
        for (int64_t bytes = 1; bytes < int64_t{1} << 40; bytes *= 3) {
          for (const Group& group : groups) {
            Work work;
            work.kind = kind;
            work.dtype = dtype;
            const Result<Route> expected = router.Of(work, {bytes}, group);
            const Result<Route> found = memory.Of(work, {bytes}, group);
            ASSERT_OK(found);
            ASSERT_EQ(found->algorithm, expected->algorithm);
            ASSERT_EQ(found->row, expected->row);
          }
        }
      }
    }
  }
}

TEST(Routes, statistics_say_which_row_decided) {
  JobOptions options;
  options.algorithms = [](int) { return "allreduce:0-64@tree"; };
  TestJob job(2, options);
  job.Run([](Engine& engine, int) {
    std::vector<float> small(4, 1.0f), large(100, 1.0f);
    for (int i = 0; i < 2; ++i) {
      (void)testing::RunOne<float>(engine, testing::MakeRequest("s", Kind::kAllreduce, small));
    }
    (void)testing::RunOne<float>(engine, testing::MakeRequest("l", Kind::kAllreduce, large));
    OrderedCall call;
    call.input = call.output = TensorView{small.data(), 4, DType::kFloat32, {}};
    EXPECT_OK(engine.RunOrdered(call, After(std::chrono::seconds(20))));

    const std::string json = engine.StatisticsJson();
    const auto has = [&](const std::string& text) { return json.find(text) != std::string::npos; };
    const std::string by = R"({"kind":"allreduce","backend":"plain","algorithm":)";
    EXPECT_TRUE(has(by + R"("tree","row":"user_rule","exchanges":3,"bytes":48})")) << json;
    EXPECT_TRUE(has(R"("row":"link_model","exchanges":1,"bytes":400})")) << json;
  });
}

// What a device's backend takes depends on scales and codecs as well.
TEST(RouteMemory, tells_apart_what_nccl_takes_and_what_it_does_not) {
  RouterOptions options;
  options.topology.host_of.assign(2, 0);
  options.nccl = NcclRows{.backend = 1, .executor = 1, .is_default = true};
  const Router router(options);
  RouteMemory memory(router);
  Group group;
  group.my_index = 0;
  group.ranks = {0, 1};
  Work plain;
  plain.device_kind = DeviceKind::kCuda;
  Work coded = plain;
  coded.codec = "fp16";
  Work scaled = plain;
  scaled.dtype = DType::kInt32;
  Work other = scaled;
  other.postscale = 0.5;

  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(memory.Of(plain, {64}, group)->executor, 1);
    EXPECT_EQ(memory.Of(coded, {64}, group)->executor, 0);
    EXPECT_EQ(memory.Of(scaled, {64}, group)->executor, 1);
    EXPECT_EQ(memory.Of(other, {64}, group)->executor, 0);
  }
}

}  // namespace
}  // namespace rabit
