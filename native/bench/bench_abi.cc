// Measures the whole engine through the C ABI, with ranks as processes of this host.
// Usage: bench_abi [ranks [options…]], e.g. bench_abi 2 transport=tcp lanes=1
//        only=64MiB           runs one line; repeats=N more or fewer of it
// Prints, on rank 0: the latency of a synchronous 1 KiB allreduce, a step of 1,000 tensors of
// 1 KiB, and 1 to 64 MiB; then the same by rabit_run and
// by rabit_run_ordered, which is not negotiated.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "include/rabit_abi.h"

namespace {

constexpr char kSecret[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

void Check(int32_t code) {
  if (code == RABIT_OK) return;
  std::fprintf(stderr, "error %d: %s\n", code, rabit_last_error());
  std::_Exit(1);
}

double NowUs() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

rabit_request RequestOf(const char* name, std::vector<float>& values, const int64_t* shape) {
  rabit_request request{};
  request.struct_size = sizeof request;
  request.kind = RABIT_ALLREDUCE;
  request.reduce_op = RABIT_SUM;
  request.backend = -1;
  request.prescale = request.postscale = 1.0;
  request.name = name;
  request.input.data = values.data();
  request.input.count = static_cast<int64_t>(values.size());
  request.input.shape = shape;
  request.input.ndim = 1;
  request.input.dtype = RABIT_FLOAT32;
  request.input.device_kind = 1;
  request.output = request.input;
  return request;
}

struct Timing {
  double submit_us;
  double total_us;
};

enum class How { kSubmit, kRun, kOrdered };

// One ordered call for each tensor.
Timing OrderedStep(rabit_engine* engine, std::vector<rabit_request>& requests) {
  const double start = NowUs();
  for (const rabit_request& request : requests) Check(rabit_run_ordered(engine, &request, 60'000));
  return {0, NowUs() - start};
}

// One blocking call for each tensor.
Timing RunStep(rabit_engine* engine, std::vector<rabit_request>& requests,
               std::vector<rabit_handle>& handles) {
  const double start = NowUs();
  for (size_t i = 0; i < requests.size(); ++i) {
    Check(rabit_run(engine, &requests[i], 60'000, &handles[i]));
  }
  const double end = NowUs();
  for (rabit_handle handle : handles) Check(rabit_release(engine, handle));
  return {0, end - start};
}

// One submit of `count` tensors of `elements` each, and the waits.
Timing Step(rabit_engine* engine, std::vector<rabit_request>& requests,
            std::vector<rabit_handle>& handles) {
  const double start = NowUs();
  Check(
      rabit_submit(engine, requests.data(), static_cast<int32_t>(requests.size()), handles.data()));
  const double submitted = NowUs();
  for (rabit_handle handle : handles) Check(rabit_wait(engine, handle, 60'000));
  const double end = NowUs();
  for (rabit_handle handle : handles) Check(rabit_release(engine, handle));
  return {submitted - start, end - start};
}

void Measure(rabit_engine* engine, bool prints, const char* title, size_t tensors, size_t bytes,
             int repeats, How how) {
  std::vector<std::vector<float>> values(tensors, std::vector<float>(bytes / 4, 1e-30f));
  std::vector<std::string> names;
  const int64_t shape[] = {static_cast<int64_t>(bytes / 4)};
  for (size_t i = 0; i < tensors; ++i) names.push_back(std::string(title) + std::to_string(i));
  std::vector<rabit_request> requests;
  for (size_t i = 0; i < tensors; ++i) {
    requests.push_back(RequestOf(names[i].c_str(), values[i], shape));
  }
  std::vector<rabit_handle> handles(tensors);
  std::vector<double> totals, submits;
  for (int i = 0; i < repeats + repeats / 10 + 2; ++i) {
    const Timing timing = how == How::kOrdered ? OrderedStep(engine, requests)
                          : how == How::kRun   ? RunStep(engine, requests, handles)
                                               : Step(engine, requests, handles);
    if (i < repeats / 10 + 2) continue;  // warm-up
    totals.push_back(timing.total_us);
    submits.push_back(timing.submit_us / static_cast<double>(tensors));
  }
  std::sort(totals.begin(), totals.end());
  std::sort(submits.begin(), submits.end());
  if (!prints) return;
  std::printf(
      "%-12s %6zu x %9zu B  median %10.1f us  p10 %10.1f  p90 %10.1f  submit %6.2f us each\n",
      title, tensors, bytes, totals[totals.size() / 2], totals[totals.size() / 10],
      totals[totals.size() * 9 / 10], submits[submits.size() / 2]);
  std::fflush(stdout);
}

struct Line {
  const char* title;
  size_t tensors;
  size_t bytes;
  int repeats;
  How how = How::kSubmit;
};
constexpr Line kLines[] = {
    {"latency", 1, 1024, 3000},
    {"64KiB", 1, 64 << 10, 500},
    {"step", 1000, 1024, 50},
    {"1MiB", 1, 1 << 20, 200},
    {"4MiB", 1, 4 << 20, 100},
    {"16MiB", 1, 16 << 20, 20},
    {"64MiB", 1, 64 << 20, 8},
    {"run64", 1, 64, 3000, How::kRun},
    {"run1K", 1, 1 << 10, 3000, How::kRun},
    {"run4K", 1, 4 << 10, 3000, How::kRun},
    {"run64K", 1, 64 << 10, 1000, How::kRun},
    {"run1M", 1, 1 << 20, 200, How::kRun},
    {"run4M", 1, 4 << 20, 100, How::kRun},
    {"run16M", 1, 16 << 20, 20, How::kRun},
    {"ordered1K", 1, 1 << 10, 3000, How::kOrdered},
    {"ordered4K", 1, 4 << 10, 3000, How::kOrdered},
    {"ordered16K", 1, 16 << 10, 2000, How::kOrdered},
    {"ordered64K", 1, 64 << 10, 1000, How::kOrdered},
    {"ordered256K", 1, 256 << 10, 500, How::kOrdered},
    {"ordered1M", 1, 1 << 20, 200, How::kOrdered},
    {"ordered4M", 1, 4 << 20, 100, How::kOrdered},
    {"ordered16M", 1, 16 << 20, 20, How::kOrdered},
};

struct Selection {
  std::string only;  // a title; empty: all
  int repeats = 0;   // 0: the line's own
};

void RunRank(int rank, int size, int port, const std::string& extra, const Selection& selection) {
  const std::string options = "rank=" + std::to_string(rank) + "\nsize=" + std::to_string(size) +
                              "\nstore=127.0.0.1:" + std::to_string(port) + "\nsecret=" + kSecret +
                              "\n" + extra;
  rabit_engine* engine = nullptr;
  Check(rabit_start(options.c_str(), &engine));
  for (const Line& line : kLines) {
    if (!selection.only.empty() && selection.only != line.title) continue;
    const int repeats = selection.repeats > 0 ? selection.repeats : line.repeats;
    Measure(engine, rank == 0, line.title, line.tensors, line.bytes, repeats, line.how);
  }
  if (rank == 0) {
    size_t needed = 0;
    Check(rabit_stats(engine, nullptr, 0, &needed));
    std::string json(needed, '\0');
    Check(rabit_stats(engine, json.data(), json.size(), &needed));
    std::printf("%s\n", json.c_str());
    std::fflush(stdout);
  }
  Check(rabit_stop(engine, 20'000));
  rabit_free(engine);
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  std::string extra;
  Selection selection;
  for (int i = 2; i < argc; ++i) {
    const std::string option = argv[i];
    if (option.starts_with("only=")) {
      selection.only = option.substr(5);
    } else if (option.starts_with("repeats=")) {
      selection.repeats = std::atoi(option.c_str() + 8);
    } else {
      extra += option + "\n";
    }
  }
  // The ranks are forked before any thread exists; the parent then serves the store.
  int ports[2];
  if (::pipe(ports) != 0) return 1;
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      int32_t port = 0;
      if (::read(ports[0], &port, sizeof port) != sizeof port) std::_Exit(1);
      RunRank(rank, size, port, extra, selection);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  rabit_store* store = nullptr;
  int32_t port = 0;
  Check(rabit_store_start((std::string("secret=") + kSecret).c_str(), &store, &port));
  for (int rank = 0; rank < size; ++rank) {
    if (::write(ports[1], &port, sizeof port) != sizeof port) return 1;
  }
  int failures = 0;
  for (pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failures += status == 0 ? 0 : 1;
  }
  rabit_store_stop(store);
  return failures == 0 ? 0 : 1;
}
