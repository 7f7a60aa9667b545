// What holds however tensors of a device travel, staged, by NCCL or by both; ranks are threads.
#include <memory>
#include <string>
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
using testing::Has;
using testing::JobOptions;
using testing::kBothWays;
using testing::kEveryWay;
using testing::MakeRequest;
using testing::RunOn;
using testing::Soon;
using Floats = std::vector<float>;

// Copies to the host are made where tensors are staged, also between hosts, and nowhere else.
void ExpectCopies(DeviceWay way, const DeviceJob& job, bool has_hosts = true) {
  const bool expected = way == DeviceWay::kStaged || (way == DeviceWay::kHierarchical && has_hosts);
  EXPECT_EQ(job.copies_to_host() > 0, expected) << Name(way);
}

// Cut, fused and left alone; scaled, and with priorities.
TEST(DeviceRun, sums_of_many_tensors_are_right_whatever_the_delays) {
  for (const DeviceWay way : kEveryWay) {
    for (const uint64_t seed : {1, 2, 3}) {
      EmulatedTrouble trouble(seed, 200);
      const int size = static_cast<int>(seed);
      JobOptions options;
      options.limits.partition_bytes = 4096;
      options.limits.fusion_bytes = 2048;
      DeviceJob job(way, size, std::move(options));
      job.Run([&](Engine& engine, int rank) {
        std::vector<std::unique_ptr<DeviceTensor>> tensors;
        std::vector<Request> requests;
        for (size_t i = 0; i < 24; ++i) {
          const Floats values(1 + 173 * i, static_cast<float>(rank + 1));
          tensors.push_back(std::make_unique<DeviceTensor>(rank, values));
          requests.push_back(tensors[i]->InPlace(Kind::kAllreduce, "t" + std::to_string(i)));
          requests[i].signature.prescale = 2.0;
          requests[i].signature.postscale = 0.25;
          requests[i].signature.priority = static_cast<int32_t>(i % 5);
        }
        std::vector<Handle> handles(requests.size());
        ASSERT_OK(engine.Submit(requests, handles));
        for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
        for (const auto& each : tensors) {
          const Floats seen = each->Read();
          EXPECT_EQ(seen, Floats(seen.size(), static_cast<float>(size * (size + 1)) / 4.0f));
        }
        EXPECT_EQ(Has(engine.StatisticsJson(), "\"nccl\""), way != DeviceWay::kStaged);
      });
      ExpectCopies(way, job, size > 1);
    }
  }
}

TEST(DeviceRun, a_mean_in_another_tensor_leaves_the_input_as_it_is) {
  for (const DeviceWay way : kEveryWay) {
    EmulatedTrouble trouble(4, 200);
    DeviceJob job(way, 2);
    job.Run([](Engine& engine, int rank) {
      const DeviceTensor in(rank, Floats(1000, static_cast<float>(rank)));
      const DeviceTensor out(rank, Floats(1000));
      Request request = in.To(out, Kind::kAllreduce, "mean");
      request.signature.op = ReduceOp::kAverage;
      EXPECT_OK(RunOn(engine, std::move(request)));
      EXPECT_EQ(out.Read(), Floats(1000, 0.5f));
      EXPECT_EQ(in.Read(), Floats(1000, static_cast<float>(rank)));
    });
    ExpectCopies(way, job);
  }
}

TEST(DeviceRun, rooted_kinds_touch_the_outputs_that_they_should) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(5, 200);
    DeviceJob job(way, 3);
    job.Run([](Engine& engine, int rank) {
      const auto mine = static_cast<float>(rank + 1);
      const DeviceTensor sent(rank, Floats(5000, mine));
      Request broadcast = sent.InPlace(Kind::kBroadcast, "b");
      broadcast.signature.root = 1;
      EXPECT_OK(RunOn(engine, std::move(broadcast)));
      EXPECT_EQ(sent.Read(), Floats(5000, 2.0f));

      const DeviceTensor part(rank, Floats(10, mine));
      const DeviceTensor sum(rank, Floats(10));
      Request reduce = part.To(sum, Kind::kReduce, "r");
      reduce.signature.root = 2;
      EXPECT_OK(RunOn(engine, std::move(reduce)));
      EXPECT_EQ(sum.Read(), Floats(10, rank == 2 ? 6.0f : 0.0f));
    });
    ExpectCopies(way, job);
  }
}

TEST(DeviceRun, kinds_of_parts_fill_outputs_on_the_device) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(6, 200);
    DeviceJob job(way, 2);
    job.Run([](Engine& engine, int rank) {
      const auto mine = static_cast<float>(rank + 1);
      const DeviceTensor part(rank, Floats(6, mine));
      const DeviceTensor all(rank, Floats(12));
      EXPECT_OK(RunOn(engine, part.To(all, Kind::kAllgather, "g")));
      Floats joined(6, 1.0f);
      joined.resize(12, 2.0f);
      EXPECT_EQ(all.Read(), joined);

      const DeviceTensor whole(rank, Floats(12, mine));
      const DeviceTensor own(rank, Floats(6));
      EXPECT_OK(RunOn(engine, whole.To(own, Kind::kReduceScatter, "s")));
      EXPECT_EQ(own.Read(), Floats(6, 3.0f));
      EXPECT_EQ(whole.Read(), Floats(12, mine));

      const DeviceTensor crossed(rank, Floats(12));
      EXPECT_OK(RunOn(engine, whole.To(crossed, Kind::kAlltoall, "a")));
      EXPECT_EQ(crossed.Read(), joined);
    });
    ExpectCopies(way, job);
  }
}

TEST(DeviceRun, a_message_reaches_the_tensor_of_its_receiver) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(7, 200);
    DeviceJob job(way, 3);
    job.Run([](Engine& engine, int rank) {
      if (rank == 1) return;
      const DeviceTensor received(rank, Floats(3));
      const DeviceTensor message(rank, Floats(3, 7.0f));
      Request pair = message.InPlace(rank == 0 ? Kind::kSend : Kind::kRecv, "m");
      pair.signature.root = 2 - rank;
      if (rank == 2) pair.input = TensorView{};
      if (rank == 2) pair.output = received.view();
      EXPECT_OK(RunOn(engine, std::move(pair)));
      EXPECT_EQ(received.Read(), Floats(3, rank == 2 ? 7.0f : 0.0f));
    });
    ExpectCopies(way, job);
  }
}

// What the engine allocates is memory of the host.
TEST(DeviceRun, results_without_an_output_come_to_the_host) {
  for (const DeviceWay way : kEveryWay) {
    EmulatedTrouble trouble(8, 200);
    DeviceJob job(way, 2);
    job.Run([](Engine& engine, int rank) {
      const auto rows = static_cast<size_t>(rank + 1);
      const DeviceTensor part(rank, Floats(rows, static_cast<float>(rank)));
      EXPECT_EQ(testing::RunOne<float>(engine, part.As(Kind::kAllgather, "g")),
                (Floats{0.0f, 1.0f, 1.0f}));
      const DeviceTensor whole(rank, Floats(5, static_cast<float>(rank + 1)));
      EXPECT_EQ(testing::RunOne<float>(engine, whole.As(Kind::kReduceScatter, "s")),
                Floats(rank == 0 ? 3 : 2, 3.0f));
      EXPECT_EQ(testing::RunOne<float>(engine, whole.As(Kind::kAllreduce, "r")), Floats(5, 3.0f));
      Request uneven = whole.As(Kind::kAlltoall, "a");
      uneven.splits = uneven.signature.splits = {1, 4};
      EXPECT_EQ(testing::RunOne<float>(engine, std::move(uneven)),
                rank == 0 ? (Floats{1.0f, 2.0f})
                          : (Floats{1.0f, 1.0f, 1.0f, 1.0f, 2.0f, 2.0f, 2.0f, 2.0f}));
      Request root = whole.As(Kind::kBroadcast, "b");
      root.signature.root = 1;
      EXPECT_EQ(testing::RunOne<float>(engine, std::move(root)), Floats(5, 2.0f));
    });
  }
}

TEST(DeviceRun, a_rank_that_has_joined_adds_nothing) {
  for (const DeviceWay way : kEveryWay) {
    EmulatedTrouble trouble(9, 100);
    DeviceJob job(way, 2);
    job.Run([](Engine& engine, int rank) {
      const DeviceTensor tensor(rank, Floats(100, 2.0f));
      EXPECT_OK(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "both")));
      EXPECT_EQ(tensor.Read(), Floats(100, 4.0f));
      if (rank == 0) {
        EXPECT_OK(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "one")));
        EXPECT_EQ(tensor.Read(), Floats(100, 4.0f));
      }
      std::vector<float> nothing;
      (void)testing::RunOne<float>(engine, MakeRequest("join", Kind::kJoin, nothing));
    });
    ExpectCopies(way, job);
  }
}

TEST(DeviceRun, a_rank_that_joins_before_it_has_used_a_device_takes_its_own) {
  for (const DeviceWay way : kBothWays) {
    EmulatedTrouble trouble(10, 100);
    DeviceJob job(way, 2);
    job.Run([](Engine& engine, int rank) {
      if (rank == 0) {
        const DeviceTensor tensor(rank, Floats(100, 2.0f));
        EXPECT_OK(RunOn(engine, tensor.InPlace(Kind::kAllreduce, "one")));
        EXPECT_EQ(tensor.Read(), Floats(100, 2.0f));
      }
      std::vector<float> nothing;
      (void)testing::RunOne<float>(engine, MakeRequest("join", Kind::kJoin, nothing));
    });
  }
}

// What is exchanged at once follows from what is agreed: a rank that has joined has no tensor on
// any device, and makes the same exchanges.
TEST(DeviceRun, a_rank_that_has_joined_cuts_what_shares_memory_as_the_others_do) {
  for (const DeviceWay way : kBothWays) {
    for (const Kind kind : {Kind::kAllreduce, Kind::kReduceScatter}) {
      JobOptions options;
      options.shares_memory = true;
      options.limits.fusion_bytes = 64 << 20;
      options.limits.partition_bytes = 64 << 20;
      DeviceJob job(way, 2, std::move(options));
      job.Run([kind](Engine& engine, int rank) {
        constexpr size_t kCount = 200'000;  // four together are more than is joined on a host
        if (rank == 0) {
          std::vector<std::unique_ptr<DeviceTensor>> tensors, parts;
          std::vector<Request> requests;
          for (size_t i = 0; i < 4; ++i) {
            tensors.push_back(std::make_unique<DeviceTensor>(rank, Floats(kCount, 2.0f)));
            parts.push_back(std::make_unique<DeviceTensor>(rank, Floats(kCount / 2, 0.0f)));
            const std::string name = "t" + std::to_string(i);
            requests.push_back(kind == Kind::kAllreduce ? tensors[i]->InPlace(kind, name)
                                                        : tensors[i]->To(*parts[i], kind, name));
          }
          std::vector<Handle> handles(requests.size());
          ASSERT_OK(engine.Submit(requests, handles));
          for (const Handle handle : handles) EXPECT_OK(engine.Wait(handle, Soon()));
          const auto& results = kind == Kind::kAllreduce ? tensors : parts;
          for (const auto& result : results) {
            const Floats seen = result->Read();
            EXPECT_EQ(seen, Floats(seen.size(), 2.0f));
          }
        }
        std::vector<float> nothing;
        (void)testing::RunOne<float>(engine, MakeRequest("join", Kind::kJoin, nothing));
      });
    }
  }
}

}  // namespace
}  // namespace rabit
