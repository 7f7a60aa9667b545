// The conformance suite over a transport whose Send waits for its Recv, and over one whose Send
// finishes at once.
#include "collective/allreduce.h"

#include <mutex>
#include <utility>
#include <vector>

#include "testing/collective_conformance.h"
#include "testing/inproc_transport.h"
#include "testing/test.h"
#include "testing/transport_wrapper.h"

namespace rabit {
namespace {

using testing::Buffer;

std::vector<std::unique_ptr<Transport>> Rendezvous(int size) {
  testing::InprocFabric fabric(size);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(fabric.Connect(rank));
  return transports;
}

// Send copies and is finished, as on a transport with large buffers.
class EagerTransport final : public TransportWrapper {
 public:
  explicit EagerTransport(std::unique_ptr<Transport> inner) : TransportWrapper(std::move(inner)) {}
  ~EagerTransport() override {
    for (auto& [operation, buffer] : sent_) EXPECT_OK(operation.Wait(testing::TestDeadline()));
  }
  std::string_view name() const override { return "eager"; }
  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    auto copy = std::make_unique<Buffer>(buffer.begin(), buffer.end());
    Operation operation = inner().Send(peer, tag, *copy);
    std::lock_guard lock(mutex_);
    sent_.emplace_back(std::move(operation), std::move(copy));
    return Operation(Status());
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<Operation, std::unique_ptr<Buffer>>> sent_;
};

std::vector<std::unique_ptr<Transport>> Eager(int size) {
  std::vector<std::unique_ptr<Transport>> transports = Rendezvous(size);
  for (auto& transport : transports) {
    transport = std::make_unique<EagerTransport>(std::move(transport));
  }
  return transports;
}

[[maybe_unused]] const int kRendezvousSuite =
    testing::RegisterAllreduceConformance("AllreduceRendezvous", &Rendezvous);

TEST(AllreduceEager, every_algorithm_is_right_when_sends_finish_at_once) {
  for (int size : {2, 3, 6}) {
    testing::CheckAllreduce(&Eager, size, DType::kFloat32, ReduceOp::kSum, {1, 1000, 300'007});
  }
}

// Some algorithms cut large buffers into blocks of 2 MiB.
TEST(AllreduceEager, every_algorithm_is_right_when_there_are_several_blocks) {
  for (int size : {2, 3}) {
    testing::CheckAllreduce(&Eager, size, DType::kFloat32, ReduceOp::kMax, {1'100'003});
  }
}

// Hierarchical with every placement of up to 6 ranks on up to 3 hosts.
TEST(Allreduce, hierarchical_works_for_every_placement) {
  const AllreduceAlgorithm* algorithm = FindAllreduceAlgorithm("hierarchical");
  for (int placement = 0; placement < 729; placement += 7) {
    std::vector<int> host_of;
    for (int rank = 0, rest = placement; rank < 6; ++rank, rest /= 3) host_of.push_back(rest % 3);
    const std::vector<Buffer> inputs = testing::MakeInputs(DType::kInt32, 101, 6);
    std::vector<Buffer> results = inputs;
    const auto transports = Rendezvous(6);

    testing::RunRanks(6, [&](int rank) {
      Scratch scratch;
      const size_t index = static_cast<size_t>(rank);
      const AllreduceArgs args{
          {results[index].data(), 101, DType::kInt32, {}}, ReduceOp::kSum, host_of};
      EXPECT_OK(algorithm->run(
          {*transports[index], MakeTag(0, 1), testing::TestDeadline(), scratch}, args));
    });

    const testing::Oracle oracle = testing::ComputeOracle(DType::kInt32, ReduceOp::kSum, inputs);
    for (const Buffer& result : results) {
      testing::ExpectMatches(oracle, DType::kInt32, result,
                             "placement " + std::to_string(placement));
    }
  }
}

TEST(Allreduce, a_missing_rank_is_a_time_out_and_not_a_hang) {
  for (const AllreduceAlgorithm& algorithm : AllreduceAlgorithms()) {
    const auto transports = Rendezvous(2);
    std::vector<float> values(1000, 1.0f);
    Scratch scratch;
    const AllreduceArgs args{{values.data(), 1000, DType::kFloat32, {}}, ReduceOp::kSum, {}};

    const Status status = algorithm.run(
        {*transports[0], MakeTag(0, 1), After(std::chrono::milliseconds(5)), scratch}, args);

    EXPECT_EQ(status.code(), Code::kTimedOut) << algorithm.name;
  }
}

TEST(Allreduce, an_abort_reaches_every_rank_that_waits) {
  for (const AllreduceAlgorithm& algorithm : AllreduceAlgorithms()) {
    const auto transports = Rendezvous(3);
    testing::RunRanks(3, [&](int rank) {
      if (rank == 2) {
        for (const auto& transport : transports) transport->Abort(Aborted("stop"));
        return;
      }
      std::vector<float> values(1000, 1.0f);
      Scratch scratch;
      const AllreduceArgs args{{values.data(), 1000, DType::kFloat32, {}}, ReduceOp::kSum, {}};
      const Status status = algorithm.run(
          {*transports[static_cast<size_t>(rank)], MakeTag(0, 1), testing::TestDeadline(), scratch},
          args);
      EXPECT_EQ(status.message(), "stop") << algorithm.name;
    });
  }
}

TEST(Allreduce, the_choice_follows_the_model) {
  const LinkModel link;
  EXPECT_EQ(ChooseAllreduceAlgorithm(link, 4, 64, false).name, "gather_all");
  EXPECT_EQ(ChooseAllreduceAlgorithm(link, 4, 64 << 20, false).name, "direct");
  for (int size : {1, 2, 3, 8, 100}) {
    for (int64_t bytes : {0, 1000, 1 << 20, 1 << 30}) {
      EXPECT_TRUE(ChooseAllreduceAlgorithm(link, size, bytes, true).is_rank_ordered);
    }
  }
}

TEST(Allreduce, narrow_types_want_rank_order_where_others_would_round_at_every_step) {
  EXPECT_TRUE(WantsRankOrder(DType::kFloat16, ReduceOp::kSum));
  EXPECT_TRUE(WantsRankOrder(DType::kBfloat16, ReduceOp::kAverage));
  EXPECT_TRUE(WantsRankOrder(DType::kInt8, ReduceOp::kAverage));
  EXPECT_FALSE(WantsRankOrder(DType::kInt8, ReduceOp::kSum));
  EXPECT_FALSE(WantsRankOrder(DType::kFloat32, ReduceOp::kAverage));
  EXPECT_FALSE(WantsRankOrder(DType::kInt64, ReduceOp::kAverage));
}

TEST(Allreduce, names_are_found_and_unknown_ones_are_not) {
  for (const AllreduceAlgorithm& algorithm : AllreduceAlgorithms()) {
    EXPECT_TRUE(FindAllreduceAlgorithm(algorithm.name) == &algorithm);
  }
  EXPECT_TRUE(FindAllreduceAlgorithm("rnig") == nullptr);
}

}  // namespace
}  // namespace rabit
