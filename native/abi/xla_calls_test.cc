// A runtime that does little more than XLA must: describe arrays, give a future, learn the end.
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "abi/xla_ffi.h"
#include "include/rabit_abi.h"
#include "testing/test.h"

namespace rabit {

// What XLA keeps opaque.
struct xla::Error {
  std::string message;
  int32_t code;
};
struct xla::Future {
  std::atomic<bool> is_set = false;
  xla::Error* error = nullptr;
};

namespace {

xla::Error* CreateError(xla::ErrorArguments* arguments) {
  return new xla::Error{arguments->message, arguments->code};
}
xla::Error* CreateFuture(xla::FutureArguments* arguments) {
  arguments->future = new xla::Future;
  return nullptr;
}
xla::Error* SetFuture(xla::FutureArguments* arguments) {
  xla::Future* future = arguments->future;
  future->error = arguments->error;
  future->is_set.store(true);
  future->is_set.notify_all();
  return nullptr;
}
xla::Error* SetAvailable(xla::FutureArguments* arguments) {
  xla::FutureArguments all = {arguments->head, arguments->future, nullptr};
  return SetFuture(&all);
}

const xla::Api kApi = {{}, {}, nullptr, CreateError, {}, CreateFuture, SetAvailable, SetFuture};

struct Outcome {
  int32_t code = 0;
  std::string message;
  bool had_future = false;
};

// Sums `arrays`, over one rank, into copies of them; in an ordered program, so with a token first.
Outcome Call(rabit_xla* xla, std::vector<std::vector<float>>& arrays, bool waits,
             std::string_view name = "w") {
  std::vector<int64_t> extents;
  std::vector<std::vector<float>> outputs = arrays;
  extents.reserve(arrays.size());
  std::vector<xla::Buffer> inputs = {{{}, xla::Type::kToken, nullptr, 0, nullptr}};
  std::vector<xla::Buffer> results = inputs;
  for (size_t i = 0; i < arrays.size(); ++i) {
    extents.push_back(static_cast<int64_t>(arrays[i].size()));
    inputs.push_back({{}, xla::Type::kFloat32, arrays[i].data(), 1, &extents.back()});
    results.push_back({{}, xla::Type::kFloat32, outputs[i].data(), 1, &extents.back()});
  }
  std::vector<xla::Buffer*> from, to;
  for (xla::Buffer& buffer : inputs) from.push_back(&buffer);
  for (xla::Buffer& buffer : results) to.push_back(&buffer);
  std::vector<std::pair<std::string_view, int64_t>> numbers = {
      {"xla", reinterpret_cast<int64_t>(xla)},
      {"kind", RABIT_ALLREDUCE},
      {"reduce_op", RABIT_SUM},
      {"root", -1},
      {"waits", waits ? 1 : 0}};
  std::vector<xla::Scalar> scalars;
  for (auto& [key, value] : numbers) scalars.push_back({xla::Type::kInt64, &value});
  xla::Text text = {name.data(), name.size()};
  std::vector<xla::Text> keys;
  std::vector<void*> values;
  for (size_t i = 0; i < numbers.size(); ++i) {
    keys.push_back({numbers[i].first.data(), numbers[i].first.size()});
    values.push_back(&scalars[i]);
  }
  keys.push_back({"name", 4});
  values.push_back(&text);
  std::vector<xla::AttributeKind> kinds(numbers.size(), xla::AttributeKind::kScalar);
  kinds.push_back(xla::AttributeKind::kText);
  std::vector<xla::Text*> names;
  for (xla::Text& key : keys) names.push_back(&key);
  xla::Frame frame = {};
  frame.api = &kApi;
  frame.stage = xla::kExecute;
  frame.arguments = {{}, static_cast<int64_t>(from.size()), nullptr, from.data()};
  frame.results = {{}, static_cast<int64_t>(to.size()), nullptr, to.data()};
  frame.attributes = {
      {}, static_cast<int64_t>(names.size()), kinds.data(), names.data(), values.data()};

  auto* error = static_cast<xla::Error*>(rabit_xla_run(&frame));

  Outcome outcome;
  outcome.had_future = frame.future != nullptr;
  if (outcome.had_future) {
    frame.future->is_set.wait(false);
    error = frame.future->error;
    delete frame.future;
  }
  if (error != nullptr) outcome = {error->code, error->message, outcome.had_future};
  delete error;
  arrays = outputs;
  return outcome;
}

// Programs hold it for as long as the process lives, so nothing frees it.
rabit_xla* OfProcess() {
  static rabit_xla* const opened = rabit_xla_open();
  return opened;
}

struct XlaJob {
  rabit_engine* engine = nullptr;
  rabit_xla* xla = OfProcess();

  XlaJob() {
    EXPECT_EQ(rabit_start("rank=0\nsize=1\n", &engine), RABIT_OK) << rabit_last_error();
    rabit_xla_use(xla, engine);
  }
  ~XlaJob() {
    rabit_xla_use(xla, nullptr);
    EXPECT_EQ(rabit_stop(engine, 5'000), RABIT_OK);
    rabit_free(engine);
  }
};

TEST(XlaCalls, a_call_that_waits_has_its_result_when_it_returns) {
  XlaJob job;
  std::vector<std::vector<float>> arrays = {{1, 2, 3}};

  const Outcome outcome = Call(job.xla, arrays, true);

  EXPECT_EQ(outcome.message, "");
  EXPECT_FALSE(outcome.had_future);
  EXPECT_TRUE(arrays[0] == (std::vector<float>{1, 2, 3}));
}

TEST(XlaCalls, several_arrays_are_one_call_and_one_future) {
  XlaJob job;
  std::vector<std::vector<float>> arrays = {{1, 2, 3}, {}, {4}};

  for (int step = 0; step < 3; ++step) {
    const Outcome outcome = Call(job.xla, arrays, false);

    EXPECT_EQ(outcome.message, "");
    EXPECT_TRUE(outcome.had_future);
  }
  EXPECT_TRUE(arrays[0] == (std::vector<float>{1, 2, 3}) && arrays[2] == std::vector<float>{4});
}

TEST(XlaCalls, what_fails_is_told_with_its_class_at_once_or_by_the_future) {
  XlaJob job;
  std::vector<std::vector<float>> arrays = {{1}};

  for (const bool waits : {true, false}) {
    const Outcome outcome = Call(job.xla, arrays, waits, "");

    EXPECT_TRUE(outcome.message.starts_with("InvalidArgument: ")) << outcome.message;
    EXPECT_EQ(outcome.code, 3);
  }
}

TEST(XlaCalls, a_program_that_outlives_its_engine_fails) {
  std::vector<std::vector<float>> arrays = {{1}};

  const Outcome outcome = Call(OfProcess(), arrays, true);

  EXPECT_TRUE(testing::Has(outcome.message, "call rabit.init()")) << outcome.message;
}

TEST(XlaCalls, says_which_version_it_was_built_for_and_does_nothing_else) {
  xla::Metadata metadata = {};
  xla::Extension extension = {sizeof extension, xla::kMetadataExtension, nullptr, &metadata};
  xla::Frame frame = {};
  frame.head.extensions = &extension;
  frame.stage = xla::kExecute;

  EXPECT_TRUE(rabit_xla_run(&frame) == nullptr);

  EXPECT_EQ(metadata.version.major, xla::kMajorVersion);
  EXPECT_EQ(metadata.version.minor, xla::kMinorVersion);
}

}  // namespace
}  // namespace rabit
