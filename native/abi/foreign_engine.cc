// Jobs: operations inside the dependency engine of another runtime, such as MXNet's.  That engine
// decides when a job runs, and learns by a C function when it has finished; no interpreter is
// entered on the way.
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/error_class.h"
#include "include/rabit_abi.h"

namespace {

// What the other runtime passes by value; the layout is part of the contract of rabit_job_run.
struct CallerCompletion {
  void (*function)(void* owner, void* token, const void* error) = nullptr;
  void* owner = nullptr;
  void* token = nullptr;
};

}  // namespace

// Created by any thread, run by one thread of the other runtime, finished by any thread.
struct rabit_job {
  rabit_engine* engine = nullptr;
  rabit_job_runtime runtime;
  std::vector<rabit_request> requests;
  std::vector<rabit_handle> handles;
  std::vector<void*> operands;
  // What the requests point to.
  std::deque<std::string> names;
  std::deque<std::vector<int64_t>> numbers;

  CallerCompletion completion;
  std::atomic<size_t> unfinished = 0;
  std::mutex error_mutex;
  std::string error;  // guarded by error_mutex; the first one counts

  void Keep(const rabit_request& given);
  void KeepNumbers(const int64_t*& values, int32_t count);
  void AddOperand(void* operand);
  bool FindMemory();
  void Fail(int32_t code, const char* message);
  void FinishOne();
};

namespace {

void TellError(const CallerCompletion& last, const std::string& error) {
  const std::runtime_error cause(error);
  last.function(last.owner, last.token, &cause);
}

// What an errand of the other runtime carries: the end of a job that has failed.
struct FailedEnd {
  CallerCompletion completion;
  std::string error;
};

void RunErrand(void* /*context*/, void* completion, void* given) {
  const auto* end = static_cast<const FailedEnd*>(given);
  TellError(end->completion, end->error);
  const auto* own = static_cast<const CallerCompletion*>(completion);
  own->function(own->owner, own->token, nullptr);
}

void DropErrand(void* given) { delete static_cast<FailedEnd*>(given); }

void OnFinished(void* context, int32_t code, const char* message) {
  auto* job = static_cast<rabit_job*>(context);
  if (code != RABIT_OK) job->Fail(code, message);
  job->FinishOne();
}

}  // namespace

void rabit_job::KeepNumbers(const int64_t*& values, int32_t count) {
  if (values == nullptr || count <= 0) return;
  numbers.emplace_back(values, values + count);
  values = numbers.back().data();
}

void rabit_job::AddOperand(void* operand) {
  if (operand == nullptr) return;
  for (void* known : operands) {
    // The other runtime refuses an operand that is named twice, as input and output of one
    // operation.
    if (known == operand) return;
  }
  operands.push_back(operand);
}

void rabit_job::Keep(const rabit_request& given) {
  rabit_request request = given;
  // A deque never moves its elements, so the pointers into it stay valid while it grows.
  names.emplace_back(given.name != nullptr ? given.name : "");
  request.name = names.back().c_str();
  KeepNumbers(request.splits, request.splits_count);
  KeepNumbers(request.input.shape, request.input.ndim);
  KeepNumbers(request.output.shape, request.output.ndim);
  request.notify = OnFinished;
  request.notify_context = this;
  AddOperand(given.input.data);
  AddOperand(given.output.data);
  requests.push_back(request);
}

bool rabit_job::FindMemory() {
  for (rabit_request& request : requests) {
    for (rabit_tensor* tensor : {&request.input, &request.output}) {
      void* operand = tensor->data;
      if (operand == nullptr) continue;
      // Only now, inside the other engine: before, it may not have given the tensor any memory.
      if (runtime.address(operand, &tensor->data) == 0) continue;
      const std::string text = std::string("'") + request.name +
                               "': the runtime that owns the tensor did not give its address; pass "
                               "a dense tensor in CPU memory";
      Fail(RABIT_INTERNAL, text.c_str());
      return false;
    }
  }
  return true;
}

void rabit_job::Fail(int32_t code, const char* message) {
  // Lanes of several requests may fail at once; this lock is the only one, and nothing is called
  // under it.
  const std::lock_guard<std::mutex> lock(error_mutex);
  if (error.empty()) error = std::string(rabit::ErrorClass(code)) + ": " + message;
}

// The other runtime may release the job during or after the call of the last one.
void rabit_job::FinishOne() {
  // The last one sees all that the others have written; the errors above need no lock from here on.
  if (unfinished.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  for (const rabit_handle handle : handles) {
    if (handle != 0) rabit_release(engine, handle);
  }
  if (error.empty()) {
    const CallerCompletion last = completion;
    last.function(last.owner, last.token, nullptr);
    return;
  }
  // The runtime keeps a list of errors that it does not lock: it hears of this one where its own
  // operations run, and on this thread only if it takes no more of them.
  auto* end = new FailedEnd{completion, error};
  if (runtime.push(RunErrand, end, DropErrand, runtime.place, nullptr, 0, nullptr, 0, nullptr, 0,
                   "rabit_failed", false) != 0) {
    TellError(end->completion, end->error);
    DropErrand(end);
  }
}

int32_t rabit_job_create(rabit_engine* engine, const rabit_request* requests, int32_t count,
                         const rabit_job_runtime* runtime, rabit_job** job) {
  if (engine == nullptr || requests == nullptr || count <= 0 || runtime == nullptr ||
      job == nullptr) {
    return RABIT_INVALID_ARGUMENT;
  }
  *job = nullptr;
  for (int32_t i = 0; i < count; ++i) {
    if (requests[i].struct_size < sizeof(rabit_request)) return RABIT_INVALID_ARGUMENT;
  }
  auto* made = new (std::nothrow) rabit_job;
  if (made == nullptr) return RABIT_RESOURCE_EXHAUSTED;
  try {
    made->engine = engine;
    made->runtime = *runtime;
    for (int32_t i = 0; i < count; ++i) made->Keep(requests[i]);
    made->handles.resize(made->requests.size());
  } catch (const std::bad_alloc&) {
    delete made;  // The operands stay the caller's.
    return RABIT_RESOURCE_EXHAUSTED;
  }
  *job = made;
  return RABIT_OK;
}

void rabit_job_run(void* /*context*/, void* completion, void* given) {
  auto* job = static_cast<rabit_job*>(given);
  job->completion = *static_cast<const CallerCompletion*>(completion);
  const size_t count = job->requests.size();
  // One more than the requests: this function itself, so that nothing ends before the handles are
  // known.
  job->unfinished.store(count + 1, std::memory_order_relaxed);
  bool is_submitted = job->FindMemory();
  if (is_submitted) {
    const int32_t code = rabit_submit(job->engine, job->requests.data(),
                                      static_cast<int32_t>(count), job->handles.data());
    is_submitted = code == RABIT_OK;
    if (!is_submitted) job->Fail(code, rabit_last_error());
  }
  if (!is_submitted) job->unfinished.store(1, std::memory_order_relaxed);
  job->FinishOne();
}

void rabit_job_release(void* given) {
  auto* job = static_cast<rabit_job*>(given);
  for (void* operand : job->operands) static_cast<void>(job->runtime.release(operand));
  delete job;
}
