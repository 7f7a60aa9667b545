// A backend that fails ends its own operations and those of no other one; ranks are threads.
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "testing/engine_job.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::Has;
using testing::InprocFabric;
using testing::JobOptions;
using testing::MakeRequest;
using testing::PlainBackend;
using testing::RunOne;
using testing::Soon;
using testing::SubmitOne;
using testing::TestJob;

constexpr BackendId kFragile = 1;
constexpr int kServer = 40;  // behind the ranks

// What becomes of the allreduces of a backend on one rank.
struct Damage {
  enum class When { kNever, kBefore, kAfter };  // the others have what they need from this rank
  std::atomic<When> when{When::kNever};
};

// Has connections of its own.
class FragileBackend final : public Backend {
 public:
  FragileBackend(std::unique_ptr<Transport> transport, const Damage& damage)
      : plain_(std::move(transport)), damage_(damage) {}

  std::string_view name() const override { return "fragile"; }
  bool fails_apart() const override { return true; }
  void Abort(Status why) override { plain_.Abort(std::move(why)); }
  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    const Damage::When when = damage_.when.load();
    if (when != Damage::When::kBefore) {
      RABIT_RETURN_IF_ERROR(plain_.Allreduce(lane, in_out, op).Wait(lane.deadline));
    }
    if (when == Damage::When::kNever) return Status();
    return PeerLost(kServer, "server 1 is lost");
  }

 private:
  PlainBackend plain_;
  const Damage& damage_;
};

// Backend 1 fails on the ranks that are damaged.
struct Job {
  explicit Job(int ranks) : size(ranks), damages(static_cast<size_t>(ranks)) {
    options.more_backends = [this, fabric = std::make_shared<InprocFabric>(ranks)](int rank) {
      std::vector<std::unique_ptr<Backend>> more;
      more.push_back(std::make_unique<FragileBackend>(fabric->Connect(rank),
                                                      damages[static_cast<size_t>(rank)]));
      return more;
    };
  }
  void DamageOn(int rank, Damage::When when) { damages[static_cast<size_t>(rank)].when = when; }

  const int size;
  std::vector<Damage> damages;
  JobOptions options;
};

Status SumOn(Engine& engine, const std::string& name, BackendId backend, int size,
             int64_t count = 1000) {
  std::vector<float> values(static_cast<size_t>(count), 1.0f);
  Request request = MakeRequest(name, Kind::kAllreduce, values);
  request.signature.backend = backend;
  Status status;
  const std::vector<float> sum = RunOne<float>(engine, std::move(request), &status);
  if (status.ok()) {
    EXPECT_EQ(sum, std::vector<float>(sum.size(), static_cast<float>(size)));
  }
  return status;
}

void ExpectFailed(const Status& status, const std::string& name) {
  EXPECT_EQ(status.code(), Code::kPeerLost) << status;
  EXPECT_EQ(status.culprit(), kServer) << status;
  EXPECT_TRUE(Has(status.message(), "'" + name + "' on rank ")) << status;
  EXPECT_TRUE(Has(status.message(), "backend '1' has failed: ")) << status;
  EXPECT_TRUE(Has(status.message(), "server 1 is lost")) << status;
}

// One rank has noticed; the others wait for it, in a star and in a tree.
TEST(BackendFailure, all_ranks_hear_of_it_and_other_backends_go_on) {
  constexpr int kSize = 4;
  for (const int fan_out : {0, 1}) {
    for (const int first : {0, 1, 3}) {
      Job job(kSize);
      job.options.fan_out = fan_out;
      TestJob(kSize, job.options).Run([&](Engine& engine, int rank) {
        EXPECT_OK(SumOn(engine, "before", kFragile, kSize));
        if (rank == first) job.DamageOn(rank, Damage::When::kBefore);
        std::vector<float> doomed(1000, 1.0f), good(1000, 1.0f);
        Request request = MakeRequest("doomed", Kind::kAllreduce, doomed);
        request.signature.backend = kFragile;
        const Handle fails = SubmitOne(engine, std::move(request));
        const Handle stays = SubmitOne(engine, MakeRequest("good", Kind::kAllreduce, good));

        EXPECT_OK(engine.Wait(stays, Soon()));
        ExpectFailed(engine.Wait(fails, Soon()), "doomed");
        engine.Release(stays);
        engine.Release(fails);

        EXPECT_OK(SumOn(engine, "after", kAnyBackend, kSize));
        ExpectFailed(SumOn(engine, "too late", kFragile, kSize), "too late");
        EXPECT_OK(SumOn(engine, "at last", kAnyBackend, kSize));
        EXPECT_TRUE(Has(engine.StatisticsJson(), "\"failed_backends\":{\"1\":\"backend '1' has"));
      });
    }
  }
}

TEST(BackendFailure, a_rank_that_has_its_sum_hears_of_it_as_well) {
  Job job(2);
  TestJob(2, job.options).Run([&](Engine& engine, int rank) {
    if (rank == 1) job.DamageOn(rank, Damage::When::kAfter);
    const Status mine = SumOn(engine, "x", kFragile, 2);
    EXPECT_EQ(mine.ok(), rank == 0) << mine;
    ExpectFailed(SumOn(engine, "y", kFragile, 2), "y");
    EXPECT_OK(SumOn(engine, "z", kAnyBackend, 2));
  });
}

TEST(BackendFailure, operations_that_name_no_backend_go_to_others) {
  Job job(3);
  job.options.routes = "allreduce:*:backend1";
  TestJob(3, job.options).Run([&](Engine& engine, int rank) {
    for (int step = 0; step < 3; ++step) EXPECT_OK(SumOn(engine, "x", kAnyBackend, 3));
    if (rank == 1) job.DamageOn(rank, Damage::When::kBefore);
    ExpectFailed(SumOn(engine, "x", kAnyBackend, 3), "x");
    for (int step = 0; step < 3; ++step) EXPECT_OK(SumOn(engine, "x", kAnyBackend, 3));
    ExpectFailed(SumOn(engine, "named", kFragile, 3), "named");
  });
}

TEST(BackendFailure, groups_are_added_and_used_without_it) {
  Job job(3);
  TestJob(3, job.options).Run([&](Engine& engine, int rank) {
    if (rank == 2) job.DamageOn(rank, Damage::When::kBefore);
    ExpectFailed(SumOn(engine, "x", kFragile, 3), "x");
    const Result<GroupId> pair = engine.AddGroup(std::vector<int>{0, 2}, Soon());
    ASSERT_OK(pair);
    if (rank == 1) return;
    std::vector<float> one = {1.0f};
    Request request = MakeRequest("pair", Kind::kAllreduce, one);
    request.signature.group = *pair;
    EXPECT_EQ(RunOne<float>(engine, std::move(request)), std::vector<float>{2.0f});
  });
}

// They are not agreed: where one leads is known without the others, and is not changed by a
// failure.
TEST(BackendFailure, ordered_calls_on_it_fail_on_every_rank_and_others_go_on) {
  Job job(3);
  job.options.routes = "allreduce:>=1K:backend1";
  TestJob(3, job.options).Run([&](Engine& engine, int rank) {
    const auto sum = [&](size_t count, BackendId backend) {
      std::vector<float> values(count, 1.0f);
      OrderedCall call;
      call.input = call.output = {values.data(), static_cast<int64_t>(count), DType::kFloat32, {}};
      call.backend = backend;
      const Status status = engine.RunOrdered(call, Soon());
      if (status.ok()) {
        EXPECT_EQ(values, std::vector<float>(count, 3.0f));
      }
      return status;
    };
    EXPECT_OK(sum(10, kFragile));
    if (rank == 1) job.DamageOn(rank, Damage::When::kBefore);
    const Status failed = sum(10, kFragile);
    const Status later = sum(10, kFragile);
    const Status routed = sum(1000, kAnyBackend);
    EXPECT_OK(sum(10, kAnyBackend));
    EXPECT_OK(SumOn(engine, "agreed", kAnyBackend, 3));
    for (const Status& each : {failed, later, routed}) {
      EXPECT_EQ(each.code(), Code::kPeerLost) << each;
      EXPECT_EQ(each.culprit(), kServer) << each;
      EXPECT_TRUE(Has(each.message(), "backend '1' has failed: ")) << each;
    }
  });
}

// The exchange of the large tensor is over on rank 0, which waits for rank 1 in that of the others,
// by another backend: nobody but rank 1 knows that it will not come.
TEST(BackendFailure, one_in_the_middle_of_a_bucket_ends_the_engine) {
  constexpr size_t kLarge = 300'000, kSmall = 110'000;  // more than a MiB stays alone
  Job job(2);
  job.options.routes = "allreduce:400K-500K:backend1;allreduce:>=1M:backend1";
  TestJob test(2, job.options);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < 2; ++rank) engines.push_back(test.Start(rank));
  job.DamageOn(1, Damage::When::kAfter);
  testing::RunRanks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<size_t>(rank)];
    std::vector<float> a(kLarge, 1.0f), b(kSmall, 1.0f), c(kSmall, 1.0f);
    Request requests[] = {MakeRequest("a", Kind::kAllreduce, a),
                          MakeRequest("b", Kind::kAllreduce, b),
                          MakeRequest("c", Kind::kAllreduce, c)};
    Handle handles[3];
    ASSERT_OK(engine.Submit(requests, handles));
    const Status status = engine.Wait(handles[1], Soon());
    EXPECT_EQ(status.code(), Code::kPeerLost) << status;
    EXPECT_TRUE(Has(status.message(), "server 1 is lost")) << status;
    const Status later = SumOn(engine, "later", kAnyBackend, 2);
    EXPECT_TRUE(Has(later.message(), "continues by another backend after it")) << later;
  });
}

}  // namespace
}  // namespace rabit
