// A runtime that does little more than MXNet's engine must: call, learn the end, free.
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "include/rabit_abi.h"
#include "testing/test.h"

namespace rabit {
namespace {

struct Operand {
  std::vector<float> values;
  bool has_memory = true;
  int released = 0;
};

struct End {
  std::atomic<int> calls = 0;
  std::string error;
  bool is_told_by_an_operation = false;
};

const int kPlace = 7;
bool takes_operations = true;
thread_local bool is_in_an_operation = false;

int FindAddress(void* operand, void** data) {
  auto* found = static_cast<Operand*>(operand);
  *data = found->values.data();
  return found->has_memory ? 0 : -1;
}

int ReleaseOperand(void* operand) {
  ++static_cast<Operand*>(operand)->released;
  return 0;
}

void OnEnd(void* /*owner*/, void* token, const void* error) {
  auto* end = static_cast<End*>(token);
  if (error != nullptr) end->error = static_cast<const std::runtime_error*>(error)->what();
  end->is_told_by_an_operation = is_in_an_operation;
  end->calls.fetch_add(1);
  end->calls.notify_all();
}

struct CompletionObject {
  void (*function)(void*, void*, const void*);
  void* owner;
  void* token;
};

void OnOperationEnd(void* /*owner*/, void* token, const void* error) {
  EXPECT_TRUE(error == nullptr);
  *static_cast<bool*>(token) = true;
}

int Push(void (*function)(void*, void*, void*), void* parameter, void (*deleter)(void*),
         const void* place, void** /*reads*/, int reads_count, void** /*writes*/, int writes_count,
         const void* property, int /*priority*/, const char* name, bool wait) {
  if (!takes_operations) return -1;
  EXPECT_TRUE(place == &kPlace && property == nullptr && name != nullptr && !wait);
  EXPECT_EQ(reads_count + writes_count, 0);
  std::thread([=] {
    is_in_an_operation = true;
    bool has_ended = false;
    CompletionObject completion{OnOperationEnd, nullptr, &has_ended};
    function(nullptr, &completion, parameter);
    EXPECT_TRUE(has_ended);
    deleter(parameter);
  }).join();
  return 0;
}

const rabit_job_runtime kRuntime = {FindAddress, ReleaseOperand, Push, &kPlace};

// Runs one allreduce on an engine of one rank, released as the other runtime would.
void RunJob(Operand& operand, const char* name, End& end) {
  rabit_engine* engine = nullptr;
  ASSERT_EQ(rabit_start("rank=0\nsize=1\n", &engine), RABIT_OK) << rabit_last_error();
  const int64_t shape[] = {static_cast<int64_t>(operand.values.size())};
  rabit_request request{};
  request.struct_size = sizeof request;
  request.kind = RABIT_ALLREDUCE;
  request.reduce_op = RABIT_SUM;
  request.backend = -1;
  request.prescale = 2.0;
  request.postscale = 1.0;
  request.name = name;
  request.input = {&operand, shape[0], shape, 1, RABIT_FLOAT32, 1, 0, 0};
  request.output = request.input;
  rabit_job* job = nullptr;
  ASSERT_EQ(rabit_job_create(engine, &request, 1, &kRuntime, &job), RABIT_OK);
  request = {};
  CompletionObject completion{OnEnd, nullptr, &end};

  rabit_job_run(nullptr, &completion, job);
  completion = {};
  end.calls.wait(0);
  EXPECT_EQ(rabit_stop(engine, 5'000), RABIT_OK);
  rabit_job_release(job);

  rabit_free(engine);
  EXPECT_EQ(end.calls.load(), 1);
  EXPECT_EQ(operand.released, 1);
}

TEST(ForeignEngine, a_job_works_on_memory_that_is_known_when_it_runs) {
  Operand operand{{1, 2, 3}};
  End end;

  RunJob(operand, "w", end);

  EXPECT_EQ(end.error, "");
  EXPECT_TRUE(operand.values == (std::vector<float>{2, 4, 6}));
  EXPECT_FALSE(end.is_told_by_an_operation);
}

TEST(ForeignEngine, a_refused_request_ends_the_job_with_its_class_and_text) {
  Operand operand{{1}};
  End end;

  RunJob(operand, "", end);

  EXPECT_TRUE(end.error.starts_with("InvalidArgument: ")) << end.error;
}

TEST(ForeignEngine, an_operand_without_memory_ends_the_job) {
  Operand operand{{1}, false};
  End end;

  RunJob(operand, "weights", end);

  EXPECT_TRUE(end.error.starts_with("Internal: 'weights'")) << end.error;
  EXPECT_TRUE(end.is_told_by_an_operation);
}

TEST(ForeignEngine, a_runtime_that_takes_no_operation_hears_of_the_error_at_once) {
  Operand operand{{1}, false};
  End end;
  takes_operations = false;

  RunJob(operand, "weights", end);

  takes_operations = true;
  EXPECT_TRUE(end.error.starts_with("Internal: 'weights'")) << end.error;
  EXPECT_FALSE(end.is_told_by_an_operation);
}

TEST(ForeignEngine, a_job_without_requests_is_refused) {
  rabit_job* job = nullptr;

  EXPECT_EQ(rabit_job_create(nullptr, nullptr, 0, &kRuntime, &job), RABIT_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace rabit
