// Latency and bandwidth of the transports between two processes of this host.
// Usage: bench_transport [rounds=9] [spin_us=-1] [chunk_bytes=65536] [ring_bytes=0]
//
// latency_us: half of a ping-pong.  exchange: both ranks send and receive at once, as the steps of
// a collective do; GB/s is payload per direction.  reduce: the received bytes are added to an array
// as well, the inner step of an allreduce; fused: the same by RecvReduce.  Configurations take
// turns within each round, and the median over the rounds is shown, so that a noisy moment hits all
// of them alike.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "arithmetic/reduce.h"
#include "testing/fork_store.h"
#include "transport/shm/shm_testing.h"

namespace rabit {
namespace {

using Clock = std::chrono::steady_clock;

struct Candidate {
  std::string name;
  std::unique_ptr<Transport> transport;
};

struct Case {
  const char* what;
  size_t bytes;
  int repeats;
};

constexpr Case kCases[] = {
    {"latency", 8, 2000},        {"latency", 1024, 2000},      {"latency", 16384, 500},
    {"exchange", 64 << 10, 300}, {"exchange", 128 << 10, 200}, {"exchange", 256 << 10, 100},
    {"exchange", 512 << 10, 60}, {"exchange", 1 << 20, 40},    {"exchange", 4 << 20, 12},
    {"exchange", 16 << 20, 4},   {"exchange", 64 << 20, 1},    {"reduce", 64 << 10, 300},
    {"fused", 64 << 10, 300},    {"reduce", 512 << 10, 60},    {"fused", 512 << 10, 60},
    {"reduce", 2 << 20, 16},     {"fused", 2 << 20, 16},       {"reduce", 8 << 20, 8},
    {"fused", 8 << 20, 8},       {"reduce", 32 << 20, 2},      {"fused", 32 << 20, 2},
};

void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_transport: %s\n", status.ToString().c_str());
  _exit(1);
}

struct Buffers {
  std::vector<std::byte> out, in, sum;
};

void AddFloats(const void*, Bytes target, ConstBytes piece) {
  const std::array<const std::byte*, 2> inputs{target.data(), piece.data()};
  Reduce(ReduceOp::kSum, DType::kFloat32, inputs, target.data(),
         static_cast<int64_t>(target.size() / 4));
}

void RunOnce(Transport& transport, const Case& test, Tag tag, Buffers& buffers) {
  const int peer = 1 - transport.rank();
  const Deadline deadline = After(std::chrono::seconds(60));
  const ConstBytes out = ConstBytes(buffers.out).first(test.bytes);
  const Bytes in = Bytes(buffers.in).first(test.bytes);
  if (test.what[0] == 'l') {
    if (transport.rank() == 0) Require(transport.Send(peer, tag, out).Wait(deadline));
    Require(transport.Recv(peer, tag, in).Wait(deadline));
    if (transport.rank() == 1) Require(transport.Send(peer, tag, out).Wait(deadline));
    return;
  }
  Operation receive =
      test.what[0] == 'f'
          ? transport.RecvReduce(peer, tag, Bytes(buffers.sum).first(test.bytes), in, {AddFloats})
          : transport.Recv(peer, tag, in);
  Operation send = transport.Send(peer, tag, out);
  Require(receive.Wait(deadline));
  if (test.what[0] == 'r') AddFloats(nullptr, Bytes(buffers.sum).first(test.bytes), in);
  Require(send.Wait(deadline));
}

double Microseconds(Transport& transport, const Case& test, uint64_t& sequence, Buffers& buffers) {
  const Case barrier{"exchange", 8, 1};
  for (int i = 0; i < 3; ++i) RunOnce(transport, barrier, MakeTag(0, ++sequence), buffers);
  RunOnce(transport, test, MakeTag(0, ++sequence), buffers);
  const auto start = Clock::now();
  for (int i = 0; i < test.repeats; ++i) {
    RunOnce(transport, test, MakeTag(0, ++sequence), buffers);
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / test.repeats;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void RunRank(Store& store, Store& second_store, int rank, int rounds, ShmOptions options) {
  std::vector<Candidate> candidates;
  options.single_copy = SingleCopy::kOff;
  auto staged = testing::ConnectOneHost(store, rank, 2, options, 1);
  Require(staged.status());
  candidates.push_back({"shm staged", std::move(staged).value()});
  options.single_copy = SingleCopy::kOn;
  options.single_copy_min_bytes = 4096;
  auto single = testing::ConnectOneHost(second_store, rank, 2, options, 1);
  if (single.ok()) {
    candidates.push_back({"shm single copy", std::move(single).value()});
  } else if (rank == 0) {
    std::printf("# single copy left out: %s\n", single.status().ToString().c_str());
  }

  Buffers buffers;
  for (auto* buffer : {&buffers.out, &buffers.in, &buffers.sum}) buffer->resize(64 << 20);
  uint64_t sequence = 0;
  for (const Case& test : kCases) {
    std::vector<std::vector<double>> times(candidates.size());
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < candidates.size(); ++i) {
        times[i].push_back(Microseconds(*candidates[i].transport, test, sequence, buffers));
      }
    }
    if (rank != 0) continue;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const bool is_latency = test.what[0] == 'l';
      const double us = Median(times[i]) / (is_latency ? 2 : 1);
      std::printf("%-9s %9zu B  %-16s %10.2f us %8.2f GB/s\n", test.what, test.bytes,
                  candidates[i].name.c_str(), us, static_cast<double>(test.bytes) / us / 1e3);
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) {
  const auto argument = [&](int i, long otherwise) {
    return argc > i ? std::strtol(argv[i], nullptr, 10) : otherwise;
  };
  rabit::ShmOptions options;
  const int rounds = static_cast<int>(std::max(1L, argument(1, 9)));
  options.spin_us = static_cast<int>(argument(2, -1));
  options.chunk_bytes = static_cast<uint32_t>(argument(3, 65536));
  options.ring_bytes = static_cast<uint32_t>(argument(4, 0));
  rabit::testing::ForkStore store;
  rabit::testing::ForkStore second_store;
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) return 1;
  rabit::RunRank(store, second_store, child == 0 ? 1 : 0, rounds, options);
  if (child == 0) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
