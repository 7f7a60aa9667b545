// Reduce-scatters and allgathers of even parts: cut, joined and repeated as allreduces are, and the
// results are those of each alone.
#include <cstring>
#include <random>

#include "base/even_rows.h"
#include "testing/engine_job.h"
#include "testing/sanitizer.h"

namespace rabit {
namespace {

using testing::JobOptions;
using testing::MakeRequest;
using testing::RunOne;
using testing::TestJob;

int64_t Number(const std::string& json, const std::string& name) {
  const size_t at = json.find("\"" + name + "\":");
  return at == std::string::npos ? -1
                                 : std::strtoll(json.c_str() + at + name.size() + 3, nullptr, 10);
}

// One tensor of a step, equal on all ranks but for its values.
struct EvenTensor {
  std::string name;
  Kind kind;
  int64_t rows;
  int64_t width;
  int32_t priority;
  double prescale;
  bool is_average;
  bool has_output;
};

int32_t Value(int rank, int64_t index) { return static_cast<int32_t>((rank + 1) * (index % 1000)); }

// What a rank has before, and after.
struct Memory {
  std::vector<int32_t> input;
  std::vector<int32_t> output;
  std::vector<int32_t> expected;
};

Memory MemoryOf(const EvenTensor& tensor, int rank, int size) {
  Memory memory;
  const EvenRows even{tensor.rows, size};
  const int64_t begin = even.Begin(rank) * tensor.width;
  const int64_t mine = even.Of(rank) * tensor.width;
  if (tensor.kind == Kind::kAllgather) {
    for (int64_t i = 0; i < mine; ++i) memory.input.push_back(Value(0, begin + i));
    for (int64_t i = 0; i < tensor.rows * tensor.width; ++i) memory.expected.push_back(Value(0, i));
  } else {
    for (int64_t i = 0; i < tensor.rows * tensor.width; ++i) memory.input.push_back(Value(rank, i));
    for (int64_t i = begin; i < begin + mine; ++i) {
      int64_t sum = 0;
      for (int r = 0; r < size; ++r) sum += static_cast<int64_t>(Value(r, i) * tensor.prescale);
      memory.expected.push_back(static_cast<int32_t>(tensor.is_average ? sum / size : sum));
    }
  }
  if (tensor.has_output) memory.output.resize(memory.expected.size());
  return memory;
}

Request RequestFor(const EvenTensor& tensor, Memory& memory, int64_t rows) {
  Request request = MakeRequest(tensor.name, tensor.kind, memory.input, {rows, tensor.width});
  request.signature.priority = tensor.priority;
  if (tensor.kind == Kind::kReduceScatter) {
    request.signature.prescale = tensor.prescale;
    request.signature.op = tensor.is_average ? ReduceOp::kAverage : ReduceOp::kSum;
  }
  if (tensor.has_output) {
    request.output = TensorView{
        memory.output.data(), static_cast<int64_t>(memory.output.size()), DType::kInt32, {}};
  }
  return request;
}

std::vector<EvenTensor> RandomStep(std::mt19937& random) {
  std::vector<EvenTensor> tensors;
  for (int i = 0; i < 12; ++i) {
    EvenTensor tensor;
    tensor.name = "t" + std::to_string(i);
    tensor.kind = i % 2 == 0 ? Kind::kAllgather : Kind::kReduceScatter;
    tensor.rows = static_cast<int64_t>(random() % 40);
    if (random() % 6 == 0) tensor.rows = 3000;
    tensor.width = 1 + static_cast<int64_t>(random() % 3);
    tensor.priority = static_cast<int32_t>(random() % 3);
    tensor.prescale = random() % 3 == 0 ? 2.0 : 1.0;
    tensor.is_average = random() % 3 == 0;
    tensor.has_output = random() % 2 == 0;
    tensors.push_back(tensor);
  }
  return tensors;
}

// Submits the step in this rank's own order, and compares.
void RunStep(Engine& engine, int rank, int size, const std::vector<EvenTensor>& tensors,
             std::mt19937& order) {
  std::vector<Memory> memories;
  for (const EvenTensor& tensor : tensors) memories.push_back(MemoryOf(tensor, rank, size));
  std::vector<size_t> places(tensors.size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = i;
  std::shuffle(places.begin(), places.end(), order);
  std::vector<Request> requests;
  for (const size_t i : places) {
    const bool is_gather = tensors[i].kind == Kind::kAllgather;
    const int64_t rows = is_gather ? EvenRows{tensors[i].rows, size}.Of(rank) : tensors[i].rows;
    requests.push_back(RequestFor(tensors[i], memories[i], rows));
  }
  std::vector<Handle> handles(requests.size());
  ASSERT_OK(engine.Submit(requests, handles));
  for (size_t at = 0; at < places.size(); ++at) {
    const Memory& memory = memories[places[at]];
    ASSERT_OK(engine.Wait(handles[at], After(std::chrono::seconds(20))));
    const Result<HandleOutput> output = engine.Output(handles[at]);
    ASSERT_OK(output);
    const auto* const data = static_cast<const int32_t*>(output->view.data);
    const std::vector<int32_t> found(data, data + output->view.count);
    EXPECT_TRUE(found == memory.expected) << tensors[places[at]].name << " on rank " << rank;
    EXPECT_TRUE(output->shape.back() == tensors[places[at]].width);
    engine.Release(handles[at]);
  }
}

TEST(EvenParts, results_do_not_depend_on_cuts_and_joins) {
  for (const int size : {1, 2, 3, 5}) {
    for (const int64_t partition_bytes : {0, 60, 4096}) {
      for (const bool is_fifo : {false, true}) {
        JobOptions options;
        options.is_fifo = is_fifo;
        options.limits.partition_bytes = partition_bytes;
        options.limits.fusion_bytes = partition_bytes == 60 ? 600 : 1 << 20;
        options.limits.credit_bytes = partition_bytes == 4096 ? 9000 : 0;
        TestJob(size, options).Run([&](Engine& engine, int rank) {
          std::mt19937 random(static_cast<uint32_t>(size));  // equal on all ranks
          std::mt19937 order(static_cast<uint32_t>(rank));
          for (int round = 0; round < testing::Repetitions(3); ++round) {
            const std::vector<EvenTensor> tensors = RandomStep(random);
            for (int step = 0; step < 3; ++step) RunStep(engine, rank, size, tensors, order);
          }
        });
      }
    }
  }
}

TEST(EvenParts, small_ones_travel_together_and_a_large_one_in_pieces) {
  for (const Kind kind : {Kind::kAllgather, Kind::kReduceScatter}) {
    JobOptions options;
    options.limits.partition_bytes = 12'000;
    options.limits.credit_bytes = 12'000;
    TestJob(3, options).Run([&](Engine& engine, int rank) {
      std::vector<EvenTensor> tensors;
      for (int i = 0; i < 20; ++i)
        tensors.push_back({"t" + std::to_string(i), kind, 7, 2, 0, 1.0, false, true});
      std::mt19937 order(1);
      for (int step = 0; step < 2; ++step) RunStep(engine, rank, 3, tensors, order);
      EXPECT_EQ(Number(engine.StatisticsJson(), "buckets"), 2);

      RunStep(engine, rank, 3, {{"large", kind, 10'000, 1, 0, 1.0, false, true}}, order);
      EXPECT_EQ(Number(engine.StatisticsJson(), "buckets"), 2 + 4);
    });
  }
}

TEST(EvenParts, a_repeated_step_is_announced_by_ids) {
  TestJob(3).Run([&](Engine& engine, int rank) {
    std::mt19937 order(1);
    std::vector<EvenTensor> tensors;
    for (int i = 0; i < 10; ++i) {
      const Kind kind = i % 2 == 0 ? Kind::kAllgather : Kind::kReduceScatter;
      tensors.push_back({"t" + std::to_string(i), kind, 8, 2, 0, 1.0, false, true});
    }
    for (int step = 0; step < 5; ++step) {
      RunStep(engine, rank, 3, tensors, order);
    }
    EXPECT_EQ(Number(engine.StatisticsJson(), "announced"), 50);
    EXPECT_EQ(Number(engine.StatisticsJson(), "announced_cached"), 40);
  });
}

// One name whose rows are even, then not, then even in another sum.
TEST(EvenParts, an_allgather_may_change_its_rows_from_step_to_step) {
  constexpr int kRanks = 3;
  JobOptions options;
  options.limits.partition_bytes = 16;
  TestJob(kRanks, options).Run([&](Engine& engine, int rank) {
    std::mt19937 steps(5);
    for (int step = 0; step < 60; ++step) {
      const auto sum = static_cast<int64_t>(steps() % 9);
      const auto odd_one = static_cast<int>(steps() % 6);
      std::vector<int32_t> input, expected;
      for (int r = 0; r < kRanks; ++r) {
        const int64_t rows = EvenRows{sum, kRanks}.Of(r) + (r == odd_one ? 1 : 0);
        expected.insert(expected.end(), static_cast<size_t>(rows), 10 * step + r);
        if (r == rank) input.assign(static_cast<size_t>(rows), 10 * step + r);
      }
      EXPECT_EQ(RunOne<int32_t>(engine, MakeRequest("x", Kind::kAllgather, input)), expected);
    }
  });
}

// An output that overlaps the input, in pieces that run at different times.
TEST(EvenParts, a_reduce_scatter_may_write_over_its_input) {
  JobOptions options;
  options.limits.partition_bytes = 200;
  options.limits.credit_bytes = 200;
  TestJob(3, options).Run([&](Engine& engine, int rank) {
    const EvenTensor tensor{"x", Kind::kReduceScatter, 1000, 1, 0, 1.0, false, false};
    for (const size_t shift : {0, 1, 333, 334, 500}) {
      Memory memory = MemoryOf(tensor, rank, 3);
      const auto count = static_cast<int64_t>(memory.expected.size());
      Request request = RequestFor(tensor, memory, tensor.rows);
      request.output = TensorView{memory.input.data() + shift, count, DType::kInt32, {}};
      EXPECT_TRUE(RunOne<int32_t>(engine, std::move(request)) == memory.expected) << shift;
    }
  });
}

TEST(EvenParts, an_allgather_whose_input_is_its_part_of_the_output) {
  JobOptions options;
  options.limits.partition_bytes = 200;
  TestJob(3, options).Run([&](Engine& engine, int rank) {
    const EvenTensor tensor{"x", Kind::kAllgather, 1000, 1, 0, 1.0, false, true};
    Memory memory = MemoryOf(tensor, rank, 3);
    const EvenRows even{tensor.rows, 3};
    int32_t* const mine = memory.output.data() + even.Begin(rank);
    std::copy(memory.input.begin(), memory.input.end(), mine);
    Request request = RequestFor(tensor, memory, even.Of(rank));
    request.input.data = mine;
    EXPECT_TRUE(RunOne<int32_t>(engine, std::move(request)) == memory.expected);
  });
}

TEST(EvenParts, ranks_outside_of_the_group_count_the_same_buckets) {
  JobOptions options;
  options.limits.partition_bytes = 100;
  options.limits.credit_bytes = 300;
  TestJob(4, options).Run([&](Engine& engine, int rank) {
    const std::vector<int> members = {1, 3};
    const Result<GroupId> group = engine.AddGroup(members, After(std::chrono::seconds(20)));
    ASSERT_OK(group);
    std::mt19937 order(static_cast<uint32_t>(rank));
    for (int step = 0; step < 4; ++step) {
      for (const Kind kind : {Kind::kAllgather, Kind::kReduceScatter}) {
        const EvenTensor tensor{"g", kind, 777, 1, 0, 1.0, false, true};
        if (rank % 2 == 1) {
          Memory memory = MemoryOf(tensor, rank / 2, 2);
          const bool is_gather = kind == Kind::kAllgather;
          Request request = RequestFor(
              tensor, memory, is_gather ? EvenRows{tensor.rows, 2}.Of(rank / 2) : tensor.rows);
          request.signature.group = *group;
          EXPECT_TRUE(RunOne<int32_t>(engine, std::move(request)) == memory.expected);
        }
        RunStep(engine, rank, 4, {{"w", kind, 500, 1, 0, 1.0, false, true}}, order);
      }
    }
  });
}

TEST(EvenParts, a_rank_that_has_joined_changes_no_sum_and_brings_no_rows) {
  JobOptions options;
  options.limits.partition_bytes = 100;
  TestJob(3, options).Run([&](Engine& engine, int rank) {
    std::vector<int32_t> none;
    if (rank != 2) {
      std::vector<int32_t> input(100, rank + 1);
      const auto mine = RunOne<int32_t>(engine, MakeRequest("s", Kind::kReduceScatter, input));
      EXPECT_EQ(mine, std::vector<int32_t>(rank == 0 ? 34 : 33, 3));
      std::vector<int32_t> part(10, rank);
      std::vector<int32_t> all(20, 0);
      std::fill(all.begin() + 10, all.end(), 1);
      EXPECT_EQ(RunOne<int32_t>(engine, MakeRequest("g", Kind::kAllgather, part)), all);
    }
    Request join = MakeRequest("join", Kind::kJoin, none);
    EXPECT_EQ(RunOne<int32_t>(engine, std::move(join)).size(), 1u);
  });
}

}  // namespace
}  // namespace rabit
