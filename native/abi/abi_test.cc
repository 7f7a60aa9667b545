// The library through its C header only, as a foreign language sees it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "include/rabit_abi.h"
#include "testing/run_ranks.h"
#include "testing/test.h"

namespace rabit {
namespace {

constexpr char kSecret[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

rabit_tensor TensorOf(std::vector<float>& values, const int64_t* shape) {
  rabit_tensor tensor{};
  tensor.data = values.data();
  tensor.count = static_cast<int64_t>(values.size());
  tensor.shape = shape;
  tensor.ndim = 1;
  tensor.dtype = RABIT_FLOAT32;
  tensor.device_kind = 1;
  return tensor;
}

rabit_request RequestOf(const char* name, int32_t kind, std::vector<float>& values,
                        const int64_t* shape) {
  rabit_request request{};
  request.struct_size = sizeof request;
  request.kind = kind;
  request.reduce_op = RABIT_SUM;
  request.root = 0;
  request.backend = -1;
  request.prescale = request.postscale = 1.0;
  request.name = name;
  request.input = request.output = TensorOf(values, shape);
  return request;
}

int32_t RunInPlace(rabit_engine* engine, const char* name, std::vector<float>& values) {
  const int64_t shape[] = {static_cast<int64_t>(values.size())};
  rabit_request request = RequestOf(name, RABIT_ALLREDUCE, values, shape);
  rabit_handle handle = 0;
  int32_t code = rabit_submit(engine, &request, 1, &handle);
  if (code != RABIT_OK) return code;
  code = rabit_wait(engine, handle, 20'000);
  EXPECT_EQ(rabit_release(engine, handle), RABIT_OK);
  return code;
}

bool LastErrorHas(const char* part) { return std::strstr(rabit_last_error(), part) != nullptr; }

// A store and engines for ranks that are threads.
class Job {
 public:
  explicit Job(int size, std::string extra = {}) : size_(size), extra_(std::move(extra)) {
    const std::string options = std::string("secret=") + kSecret;
    EXPECT_EQ(rabit_store_start(options.c_str(), &store_, &port_), RABIT_OK) << rabit_last_error();
  }
  ~Job() { rabit_store_stop(store_); }

  rabit_engine* Start(int rank, const std::string& more = {}) {
    const std::string options = "rank=" + std::to_string(rank) + "\nsize=" + std::to_string(size_) +
                                "\nstore=127.0.0.1:" + std::to_string(port_) +
                                "\nsecret=" + kSecret + "\nconnect_timeout_ms=20000\n" + more +
                                extra_;
    rabit_engine* engine = nullptr;
    EXPECT_EQ(rabit_start(options.c_str(), &engine), RABIT_OK) << rabit_last_error();
    return engine;
  }

 private:
  const int size_;
  const std::string extra_;
  rabit_store* store_ = nullptr;
  int32_t port_ = 0;
};

TEST(Abi, a_job_of_one_rank_reduces_and_reports) {
  rabit_engine* engine = nullptr;
  ASSERT_EQ(rabit_start("", &engine), RABIT_OK) << rabit_last_error();
  std::vector<float> values = {1, 2, 3};
  EXPECT_EQ(RunInPlace(engine, "x", values), RABIT_OK) << rabit_last_error();
  EXPECT_EQ(values[2], 3.0f);
  int32_t rank = -1, size = -1;
  EXPECT_EQ(rabit_topology(engine, 0, &rank, &size), RABIT_OK);
  EXPECT_EQ(rank, 0);
  EXPECT_EQ(size, 1);
  size_t needed = 0;
  EXPECT_EQ(rabit_stats(engine, nullptr, 0, &needed), RABIT_OK);
  std::string json(needed + 1000, '\0');
  EXPECT_EQ(rabit_stats(engine, json.data(), json.size(), &needed), RABIT_OK);
  EXPECT_TRUE(json.find("\"tensors\":1") != std::string::npos) << json;
  EXPECT_EQ(rabit_stop(engine, 10'000), RABIT_OK) << rabit_last_error();
  rabit_free(engine);
}

TEST(Abi, an_output_that_the_engine_allocates_is_described) {
  rabit_engine* engine = nullptr;
  ASSERT_EQ(rabit_start("", &engine), RABIT_OK) << rabit_last_error();
  std::vector<float> values = {1, 2, 3, 4};
  const int64_t shape[] = {4};
  rabit_request request = RequestOf("x", RABIT_ALLGATHER, values, shape);
  request.output = rabit_tensor{};
  request.output.dtype = RABIT_FLOAT32;
  rabit_handle handle = 0;
  ASSERT_EQ(rabit_submit(engine, &request, 1, &handle), RABIT_OK) << rabit_last_error();
  ASSERT_EQ(rabit_wait(engine, handle, 10'000), RABIT_OK) << rabit_last_error();
  rabit_tensor output{};
  int64_t extents[8] = {};
  ASSERT_EQ(rabit_output(engine, handle, &output, extents, nullptr), RABIT_OK);
  EXPECT_EQ(output.count, 4);
  EXPECT_EQ(output.ndim, 1);
  EXPECT_EQ(extents[0], 4);
  EXPECT_EQ(static_cast<float*>(output.data)[3], 4.0f);
  rabit_free(engine);
}

TEST(Abi, bad_arguments_are_named_and_nothing_is_enqueued) {
  rabit_engine* engine = nullptr;
  EXPECT_EQ(rabit_start(nullptr, &engine), RABIT_INVALID_ARGUMENT);
  EXPECT_EQ(rabit_start("lames=2", &engine), RABIT_INVALID_ARGUMENT);
  EXPECT_TRUE(LastErrorHas("lanes"));
  EXPECT_TRUE(engine == nullptr);
  ASSERT_EQ(rabit_start("", &engine), RABIT_OK);
  std::vector<float> values = {1};
  const int64_t shape[] = {1};
  rabit_handle handles[2] = {};
  rabit_request requests[2] = {RequestOf("same", RABIT_ALLREDUCE, values, shape),
                               RequestOf("same", RABIT_ALLREDUCE, values, shape)};
  EXPECT_EQ(rabit_submit(engine, requests, 2, handles), RABIT_INVALID_ARGUMENT);
  EXPECT_TRUE(LastErrorHas("'same'"));
  requests[0].kind = 77;
  EXPECT_EQ(rabit_submit(engine, requests, 1, handles), RABIT_INVALID_ARGUMENT);
  requests[0] = RequestOf("root", RABIT_BROADCAST, values, shape);
  requests[0].root = 9;
  EXPECT_EQ(rabit_submit(engine, requests, 1, handles), RABIT_INVALID_ARGUMENT);
  EXPECT_TRUE(LastErrorHas("rank 9"));
  requests[0] = RequestOf("", RABIT_ALLREDUCE, values, shape);
  EXPECT_EQ(rabit_submit(engine, requests, 1, handles), RABIT_INVALID_ARGUMENT);
  EXPECT_EQ(rabit_wait(engine, 12345, 0), RABIT_INVALID_ARGUMENT);
  int32_t which = 0;
  EXPECT_EQ(rabit_wait_any(engine, nullptr, 1, 0, &which, nullptr), RABIT_INVALID_ARGUMENT);
  EXPECT_EQ(rabit_wait_any(engine, nullptr, 0, 0, &which, nullptr), RABIT_TIMED_OUT);
  EXPECT_EQ(which, -1);
  EXPECT_EQ(RunInPlace(engine, "same", values), RABIT_OK) << rabit_last_error();
  int32_t found = -1;
  EXPECT_EQ(rabit_find_backend(engine, "nccl9", &found), RABIT_INVALID_ARGUMENT);
  EXPECT_EQ(rabit_find_backend(engine, "builtin", &found), RABIT_OK);
  EXPECT_EQ(found, 0);
  EXPECT_EQ(rabit_add_codec(engine, "fp16", &found), RABIT_OK);
  rabit_free(engine);
}

TEST(Abi, an_aborting_rank_tells_the_others_its_reason) {
  Job job(2, "");
  testing::RunRanks(2, [&](int rank) {
    rabit_engine* engine = job.Start(rank);
    if (engine == nullptr) return;
    std::vector<float> values = {1};
    if (rank == 1) {
      EXPECT_EQ(rabit_abort(engine, nullptr, 0), RABIT_INVALID_ARGUMENT);
      EXPECT_EQ(rabit_abort(engine, "KeyError: 'lr'", 10'000), RABIT_OK) << rabit_last_error();
      EXPECT_EQ(RunInPlace(engine, "x", values), RABIT_ABORTED);
      EXPECT_TRUE(LastErrorHas("KeyError: 'lr'"));
    } else {
      EXPECT_EQ(RunInPlace(engine, "x", values), RABIT_PEER_LOST);
      EXPECT_TRUE(LastErrorHas("rank 1 is ending after KeyError: 'lr'"));
      EXPECT_EQ(rabit_last_culprit(), 1);
    }
    rabit_free(engine);
  });
}

TEST(Abi, the_driver_of_cuda_is_described_or_why_there_is_none) {
  size_t needed = 0;
  ASSERT_EQ(rabit_describe_cuda(nullptr, 0, &needed), RABIT_OK);
  std::string json(needed, '\0');
  ASSERT_EQ(rabit_describe_cuda(json.data(), json.size(), &needed), RABIT_OK);
  EXPECT_NE(json.find("\"unavailable\":\""), std::string::npos);
}

TEST(Abi, capabilities_are_described_as_json) {
  size_t needed = 0;
  ASSERT_EQ(rabit_capabilities(nullptr, 0, &needed), RABIT_OK);
  std::string json(needed, '\0');
  ASSERT_EQ(rabit_capabilities(json.data(), json.size(), &needed), RABIT_OK);
  EXPECT_TRUE(json.find("\"builtin\"") != std::string::npos);
  EXPECT_TRUE(json.find("\"partition_bytes\"") != std::string::npos);
}

void ReduceOnAllRanks(int size, const std::string& extra) {
  Job job(size, extra);
  testing::RunRanks(size, [&](int rank) {
    rabit_engine* engine = job.Start(rank);
    if (engine == nullptr) return;
    for (int step = 0; step < 3; ++step) {
      for (size_t count : {1, 1000, 100'000}) {
        std::vector<float> values(count, static_cast<float>(rank + 1));
        EXPECT_EQ(RunInPlace(engine, ("x" + std::to_string(count)).c_str(), values), RABIT_OK)
            << rabit_last_error();
        EXPECT_EQ(values.back(), static_cast<float>(size * (size + 1) / 2));
      }
    }
    EXPECT_EQ(rabit_stop(engine, 20'000), RABIT_OK) << rabit_last_error();
    rabit_free(engine);
  });
}

TEST(Abi, ranks_reduce_through_shared_memory) { ReduceOnAllRanks(2, "transport=shm"); }
TEST(Abi, ranks_reduce_through_tcp) { ReduceOnAllRanks(3, "transport=tcp"); }
TEST(Abi, ranks_reduce_through_what_is_chosen) { ReduceOnAllRanks(4, "lanes=3"); }

TEST(Abi, ranks_of_two_hosts_use_shared_memory_and_tcp_together) {
  Job job(4);
  testing::RunRanks(4, [&](int rank) {
    rabit_engine* engine = job.Start(rank, rank < 2 ? "host_key=a\n" : "host_key=b\n");
    if (engine == nullptr) return;
    std::vector<float> values(1000, static_cast<float>(rank));
    EXPECT_EQ(RunInPlace(engine, "x", values), RABIT_OK) << rabit_last_error();
    EXPECT_EQ(values[999], 6.0f);
    EXPECT_EQ(rabit_stop(engine, 20'000), RABIT_OK) << rabit_last_error();
    rabit_free(engine);
  });
}

}  // namespace
}  // namespace rabit
