// Times every allreduce algorithm at many sizes; ranks are processes of this host.
// Usage: bench_collective [ranks 2] [rounds 7] [largest size in bytes 67108864] [shm or tcp]
//                         [smallest size 64]
//
// Microseconds per float32 sum, seen by rank 0 after a barrier.  Algorithms take
// turns within each round, and the median over the rounds is shown, so that a noisy moment hits all
// of them alike.  The last columns are the model's choice and its bus bandwidth: the bytes that any
// algorithm must send per rank, 2 (n-1)/n of the buffer, over the time.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "collective/allreduce.h"
#include "collective/barrier.h"
#include "collective/link_probe.h"
#include "testing/fork_store.h"
#include "transport/shm/shm_testing.h"
#include "transport/tcp/tcp_transport.h"

namespace rabit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMeasurements = 3;  // of the links, to see how far they agree

void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

class Bench {
 public:
  Bench(Transport& transport, int rounds, int64_t bytes_min, int64_t bytes_max)
      : transport_(transport),
        rounds_(rounds),
        bytes_min_(bytes_min),
        bytes_max_(bytes_max),
        buffer_(static_cast<size_t>(bytes_max / 4), 1.0f) {}

  void Run() {
    for (int i = 0; i < kMeasurements; ++i) MeasureLinks();
    if (transport_.rank() == 0) PrintHeader();
    for (int64_t bytes = bytes_min_; bytes <= bytes_max_; bytes *= 4) Measure(bytes);
  }

 private:
  CollectiveCall NextCall() {
    return {transport_, MakeTag(0, ++sequence_), After(std::chrono::seconds(60)), scratch_};
  }
  double Micros(const AllreduceAlgorithm& algorithm, int64_t bytes, int repeats) {
    const AllreduceArgs args{
        {buffer_.data(), bytes / 4, DType::kFloat32, {}}, ReduceOp::kMax, hosts_};
    Require(algorithm.run(NextCall(), args));
    Require(Barrier(NextCall()));
    const auto start = Clock::now();
    for (int i = 0; i < repeats; ++i) Require(algorithm.run(NextCall(), args));
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / repeats;
  }
  void MeasureLinks();
  void Measure(int64_t bytes);
  void PrintHeader() const;

  Transport& transport_;
  const int rounds_;
  const int64_t bytes_min_;
  const int64_t bytes_max_;
  std::vector<float> buffer_;
  std::vector<int> hosts_ = std::vector<int>(static_cast<size_t>(transport_.size()), 0);
  Scratch scratch_;
  uint64_t sequence_ = 0;
  std::vector<LinkModel> links_;
};

void Bench::MeasureLinks() {
  const CollectiveCall call = NextCall();
  sequence_ += 1 << 20;  // a measurement takes many tags
  const auto start = Clock::now();
  const auto cores = static_cast<double>(FindProcessors().size());
  Result<LinkModel> found =
      MeasureLink(call, call, {}, {std::chrono::milliseconds(50), transport_.size() / cores});
  Require(found.status());
  links_.push_back(*found);
  if (transport_.rank() != 0) return;
  std::printf(
      "# measured in %.1f ms: latency %.2f us, fan %.2f us, message %.2f us, %.0f bytes/us, "
      "reduction %.0f bytes/us\n",
      std::chrono::duration<double, std::milli>(Clock::now() - start).count(), found->latency_us,
      found->fan_us, found->message_us, found->bytes_per_us, found->reduce_bytes_per_us);
}

void Bench::PrintHeader() const {
  std::printf("# %d ranks, transport %s, medians of %d rounds, microseconds\n%10s",
              transport_.size(), std::string(transport_.name()).c_str(), rounds_, "bytes");
  for (const AllreduceAlgorithm& algorithm : AllreduceAlgorithms()) {
    std::printf(" %18s", std::string(algorithm.name).c_str());
  }
  std::printf(" %8s  choices, and the fastest's time over theirs\n", "GB/s");
}

void Bench::Measure(int64_t bytes) {
  const int repeats = static_cast<int>(std::clamp<int64_t>((4 << 20) / bytes, 1, 200));
  std::vector<std::vector<double>> times(AllreduceAlgorithms().size());
  for (int round = 0; round < rounds_; ++round) {
    for (size_t i = 0; i < times.size(); ++i) {
      times[i].push_back(Micros(AllreduceAlgorithms()[i], bytes, repeats));
    }
  }
  if (transport_.rank() != 0) return;
  const int size = transport_.size();
  double best_us = 0;
  std::printf("%10lld", static_cast<long long>(bytes));
  for (size_t i = 0; i < times.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    const double median = times[i][times[i].size() / 2];
    if (i == 0 || median < best_us) best_us = median;
    std::printf(" %18.1f", median);
  }
  const double sent = 2.0 * (size - 1) / size * static_cast<double>(bytes);
  std::printf(" %8.2f", sent / best_us / 1e3);
  for (const LinkModel& link : links_) {
    const AllreduceAlgorithm& chosen =
        ChooseAllreduceAlgorithm(link, size, bytes, false);
    const auto& figures = times[static_cast<size_t>(&chosen - AllreduceAlgorithms().data())];
    std::printf("  %s %.2f", std::string(chosen.name).c_str(),
                best_us / figures[figures.size() / 2]);
  }
  std::printf("\n");
  std::fflush(stdout);
}

struct Settings {
  int size = 2;
  int rounds = 7;
  int64_t bytes_min = 64;
  int64_t bytes_max = 64 << 20;
  bool is_tcp = false;
};

void RunOver(Transport& transport, const Settings& settings) {
  Bench(transport, settings.rounds, settings.bytes_min, settings.bytes_max).Run();
  Scratch scratch;
  Require(Barrier({transport, MakeTag(0, 1) + 0x1000, After(std::chrono::seconds(60)), scratch}));
}

void RunTcpRank(Store& store, int rank, const Settings& settings) {
  const Secret secret{};
  auto listener = Listener::Open("127.0.0.1:0", secret, 1, rank);
  Require(listener.status());
  Require(store.Set("1/address/" + std::to_string(rank), (*listener)->address()));
  const auto topology =
      Topology::Alike(std::vector<int>(static_cast<size_t>(settings.size), 0), FindProcessors());
  const ConnectContext context{.rank = rank,
                               .size = settings.size,
                               .epoch = 1,
                               .store = store,
                               .listener = **listener,
                               .secret = secret,
                               .topology = topology,
                               .streams = 1,
                               .deadline = After(std::chrono::seconds(30))};
  TcpOptions options;
  options.spin = SocketSpinTimesFor(-1, topology.CoresAt(0));
  auto transport = ConnectTcpTransport(context, options);
  Require(transport.status());
  RunOver(**transport, settings);
}

void RunRank(Store& store, int rank, const Settings& settings) {
  if (settings.is_tcp) return RunTcpRank(store, rank, settings);
  auto transport = testing::ConnectOneHost(store, rank, settings.size, {}, 1);
  Require(transport.status());
  RunOver(**transport, settings);
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) {
  const auto argument = [&](int i, long otherwise) {
    return argc > i ? std::strtol(argv[i], nullptr, 10) : otherwise;
  };
  rabit::Settings settings;
  settings.size = static_cast<int>(std::clamp(argument(1, 2), 2L, 16L));
  settings.rounds = static_cast<int>(std::max(1L, argument(2, 7)));
  settings.bytes_max = std::max(64L, argument(3, 64 << 20));
  settings.bytes_min = std::max(4L, argument(5, 64));
  settings.is_tcp = argc > 4 && std::string(argv[4]) == "tcp";
  rabit::testing::ForkStore store;
  std::vector<pid_t> children;
  for (int rank = 1; rank < settings.size; ++rank) {
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      rabit::RunRank(store, rank, settings);
      _exit(0);
    }
    children.push_back(child);
  }
  rabit::RunRank(store, 0, settings);
  int failures = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failures;
  }
  return failures == 0 ? 0 : 1;
}
