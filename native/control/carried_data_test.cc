#include "control/carried_data.h"

#include <cstring>

#include "control/announcer.h"
#include "testing/simulator/controller_job.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::ControllerJob;

Announcement::Entry Entry(float value, bool brings_data) {
  Announcement::Entry entry;
  entry.name = "loss";
  entry.signature.shape = {1};
  if (brings_data) {
    entry.data.resize(sizeof value);
    std::memcpy(entry.data.data(), &value, sizeof value);
  }
  return entry;
}

// All announce "loss"; the data of rank 0's agreement.
std::vector<std::byte> Step(ControllerJob& job, const std::vector<bool>& brings) {
  for (int rank = 0; rank < job.size(); ++rank) {
    Announcement mine;
    mine.ready = {Entry(static_cast<float>(rank + 1), brings[static_cast<size_t>(rank)])};
    job.Announce(rank, mine);
  }
  EXPECT_OK(job.Deliver());
  std::vector<std::byte> data;
  for (int rank = 0; rank < job.size(); ++rank) {
    const auto& agreed = job.agreed(rank);
    EXPECT_EQ(agreed.size(), 1u);
    EXPECT_EQ(agreed[0].ready.size(), 1u);
    if (rank == 0) data = agreed[0].ready[0].data;
    EXPECT_TRUE(agreed[0].ready[0].data == data);
    job.agreed(rank).clear();
  }
  return data;
}

TEST(CarriedData, the_sum_comes_only_if_every_rank_brings_its_part) {
  ControllerJob job(3);

  for (int step = 0; step < 3; ++step) {
    const std::vector<std::byte> sum = Step(job, {true, true, true});
    ASSERT_EQ(sum.size(), sizeof(float));
    float value = 0;
    std::memcpy(&value, sum.data(), sizeof value);
    EXPECT_EQ(value, 6.0f);
    EXPECT_TRUE(Step(job, {true, false, true}).empty());
    EXPECT_TRUE(Step(job, {false, false, false}).empty());
  }
}

TEST(CarriedData, a_rank_that_has_joined_brings_none) {
  ControllerJob job(3);
  (void)Step(job, {true, true, true});
  Announcement join;
  join.ready.emplace_back().name = "join";
  join.ready[0].signature.kind = Kind::kJoin;
  job.Announce(2, join);
  for (int rank : {0, 1}) {
    Announcement mine;
    mine.ready = {Entry(1.0f, true)};
    job.Announce(rank, mine);
  }
  ASSERT_OK(job.Deliver());

  ASSERT_EQ(job.agreed(1).size(), 1u);
  const ReadyTensor& ready = job.agreed(1)[0].ready[0];
  EXPECT_TRUE(ready.joined == std::vector<int>{2});
  EXPECT_TRUE(ready.data.empty());
}

TEST(CarriedData, fits_the_tensor_or_is_refused) {
  Signature signature;
  signature.shape = {2};
  EXPECT_OK(CheckCarried(signature, std::vector<std::byte>(8)));
  EXPECT_EQ(CheckCarried(signature, std::vector<std::byte>(7)).message(),
            "7 bytes of data came with allreduce of float32[2]");
  EXPECT_FALSE(CheckCarried(signature, std::vector<std::byte>(12)).ok());
  signature.dtype = DType::kFloat64;
  signature.shape = {(int64_t{1} << 61) + 1};  // as many bytes as one element, counted in 64 bits
  EXPECT_FALSE(CheckCarried(signature, std::vector<std::byte>(8)).ok());
  signature.shape = {1};
  EXPECT_OK(CheckCarried(signature, std::vector<std::byte>(8)));
  signature.kind = Kind::kGather;
  EXPECT_FALSE(CheckCarried(signature, std::vector<std::byte>(8)).ok());
}

TEST(CarriedData, a_result_has_the_bytes_of_all_ranks) {
  ReadyTensor ready;
  ready.name = "x";
  ready.signature.shape = {4, 3};
  const auto fits = [&](size_t bytes) {
    ready.data.resize(bytes);
    return CheckCarriedResult(ready, 2);
  };
  for (const Kind kind : {Kind::kAllreduce, Kind::kReduce, Kind::kReduceScatter, Kind::kBroadcast,
                          Kind::kAllgather}) {
    ready.signature.kind = kind;
    EXPECT_OK(fits(48));
    EXPECT_FALSE(fits(96).ok());
    EXPECT_FALSE(fits(47).ok());
  }
  ready.signature.kind = Kind::kAlltoall;
  EXPECT_OK(fits(96));
  EXPECT_EQ(fits(48).message(),
            "rank 0 sent 48 bytes as the result of 'x', alltoall of float32[4,3] on 2 ranks");
  ready.extents = {4};
  EXPECT_FALSE(fits(96).ok());  // cut by each rank in its own way
  ready.signature.kind = Kind::kAllgather;
  ready.extents = {4, 1};
  EXPECT_OK(fits(60));
  EXPECT_FALSE(fits(48).ok());
  ready.extents = {6, -1};
  EXPECT_FALSE(fits(60).ok());
  ready.extents = {int64_t{1} << 62, int64_t{1} << 62};
  EXPECT_FALSE(fits(60).ok());
  ready.signature.kind = Kind::kGather;
  EXPECT_FALSE(fits(60).ok());
}

TEST(CarriedData, data_that_does_not_fit_fails_the_job_and_names_the_rank) {
  for (const bool is_first : {true, false}) {
    ControllerJob job(2);
    if (!is_first) (void)Step(job, {true, true});
    Announcement wrong;
    wrong.ready = {Entry(1.0f, true)};
    wrong.ready[0].data.resize(3);
    job.Announce(1, wrong);
    (void)job.Deliver();

    const Status& failure = job.failure(0);
    EXPECT_EQ(failure.code(), Code::kInternal);
    EXPECT_EQ(failure.culprit(), 1);
    EXPECT_EQ(failure.message(),
              "rank 1: 'loss': 3 bytes of data came with allreduce of float32[1]");
  }
}

TEST(CarriedData, an_agreement_with_data_that_does_not_fit_is_refused) {
  Announcer announcer(1, 2);
  AgreeMessage message;
  message.cycle = 1;
  Signature signature;
  signature.shape = {1};
  message.definitions = {{{0, {}, {}, std::vector<std::byte>(8)}, {"loss"}, signature}};

  EXPECT_EQ(announcer.Apply(std::move(message)).status().message(),
            "rank 0 sent 8 bytes as the result of 'loss', allreduce of float32[1] on 2 ranks");
}

// The order in which ranks announce must not show in the bits.
TEST(CarriedData, is_reduced_in_the_order_of_the_ranks) {
  const float values[] = {1e8f, 1.0f, -1e8f};
  Signature signature;
  signature.shape = {1};
  CarriedData carried;
  for (const size_t member : {2u, 0u, 1u}) {
    EXPECT_FALSE(carried.IsComplete(Carried::kReduced));
    carried.Add(member, 3, std::as_bytes(std::span(&values[member], 1)));
  }

  ASSERT_TRUE(carried.IsComplete(Carried::kReduced));
  const std::vector<std::byte> sum = carried.Result(signature);
  float value = 1;
  std::memcpy(&value, sum.data(), sizeof value);
  EXPECT_EQ(value, (1e8f + 1.0f) - 1e8f);
}

TEST(CarriedData, of_more_ranks_than_one_reduction_takes_is_never_complete) {
  const float value = 1;
  CarriedData carried;
  for (size_t member = 0; member < 1025; ++member)
    carried.Add(member, 1025, std::as_bytes(std::span(&value, 1)));

  EXPECT_FALSE(carried.IsComplete(Carried::kReduced));
}

TEST(CarriedData, is_put_together_in_the_order_of_the_ranks) {
  Signature signature;
  signature.kind = Kind::kAllgather;
  const float values[] = {1, 2, 3, 4};
  const auto part = [&](size_t from, size_t count) {
    return std::as_bytes(std::span(values).subspan(from, count));
  };
  CarriedData carried;
  carried.Add(1, 3, part(2, 1));
  carried.Add(2, 3, part(3, 1));
  EXPECT_FALSE(carried.IsComplete(Carried::kOneByOne));
  carried.Add(0, 3, part(0, 2));

  ASSERT_TRUE(carried.IsComplete(Carried::kOneByOne));
  const std::vector<std::byte> all = carried.Result(signature);
  ASSERT_EQ(all.size(), sizeof values);
  EXPECT_EQ(std::memcmp(all.data(), values, sizeof values), 0);
}

TEST(CarriedData, of_all_ranks_is_no_more_than_an_agreement_takes) {
  const std::vector<std::byte> half(kCarriedBytesMax / 2);
  CarriedData fits;
  for (size_t member = 0; member < 2; ++member) fits.Add(member, 2, half);
  EXPECT_TRUE(fits.IsComplete(Carried::kOneByOne));

  CarriedData is_large;
  for (size_t member = 0; member < 3; ++member) is_large.Add(member, 3, half);
  EXPECT_FALSE(is_large.IsComplete(Carried::kOneByOne));
  EXPECT_TRUE(is_large.IsComplete(Carried::kReduced));
}

TEST(CarriedData, of_a_broadcast_is_the_roots_alone) {
  ControllerJob job(2);
  Announcement wrong;
  wrong.ready = {Entry(1.0f, true)};
  wrong.ready[0].signature.kind = Kind::kBroadcast;
  wrong.ready[0].signature.root = 0;
  job.Announce(1, wrong);
  (void)job.Deliver();

  EXPECT_EQ(job.failure(0).culprit(), 1);
  EXPECT_EQ(job.failure(0).message(), "rank 1: 'loss': data came that is not the root's");
}

}  // namespace
}  // namespace rabit
