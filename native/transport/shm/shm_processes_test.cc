// The shared-memory transport between real processes, some of which die.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "testing/fork_store.h"
#include "testing/run_ranks.h"
#include "testing/sanitizer.h"
#include "testing/test.h"
#include "transport/shm/shm_testing.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;
using testing::ConnectOneHost;
using testing::ForkStore;
using testing::RunRanks;
using Buffer = std::vector<std::byte>;

constexpr int kPassed = 17;  // exit status of a child that got to its end

ShmOptions Options(SingleCopy single_copy) {
  return {.single_copy = single_copy, .single_copy_min_bytes = 4096};
}

// Runs `body` in a child that dies with this process.
pid_t Fork(const std::function<void()>& body) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == parent) body();
  _exit(testing::CurrentTestFailed() ? 1 : kPassed);
}

int ExitStatus(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::byte ValueOf(int rank, uint64_t round) {
  return static_cast<std::byte>(round * 8 + static_cast<uint64_t>(rank) + 1);
}

// Exchanges messages of random sizes, the same on both ranks, and checks each byte.
Status Exchange(Transport& transport, int peer, int stream, uint64_t rounds, Deadline deadline) {
  std::mt19937 random(3);
  Buffer mine(400000), theirs(400000);
  for (uint64_t round = 0; round < rounds; ++round) {
    const size_t bytes = random() % 3 == 0 ? random() % 64 : random() % mine.size();
    std::fill_n(mine.begin(), bytes, ValueOf(transport.rank(), round));
    const Tag tag = MakeTag(stream, round);
    Operation receive = transport.Recv(peer, tag, Bytes(theirs).first(bytes));
    Operation send = transport.Send(peer, tag, ConstBytes(mine).first(bytes));
    RABIT_RETURN_IF_ERROR(receive.Wait(deadline));
    RABIT_RETURN_IF_ERROR(send.Wait(deadline));
    const auto right =
        std::count(theirs.begin(), theirs.begin() + static_cast<long>(bytes), ValueOf(peer, round));
    if (right != static_cast<long>(bytes)) {
      return Internal("round " + std::to_string(round) + ": " + std::to_string(right) + " of " +
                      std::to_string(bytes) + " bytes are right");
    }
  }
  return Status();
}

void ProcessesExchange(SingleCopy single_copy) {
  constexpr auto kRounds = uint64_t{testing::Repetitions(300)};
  ForkStore store;
  const auto body = [&](int rank) {
    auto transport = ConnectOneHost(store, rank, 2, Options(single_copy));
    ASSERT_OK(transport);
    EXPECT_OK(Exchange(**transport, 1 - rank, 0, kRounds, After(60s)));
  };
  const pid_t child = Fork([&] { body(1); });
  body(0);
  EXPECT_EQ(ExitStatus(child), kPassed);
}

TEST(ShmProcesses, exchange_staged) { ProcessesExchange(SingleCopy::kOff); }
TEST(ShmProcesses, exchange_by_single_copy) { ProcessesExchange(SingleCopy::kOn); }

// Ranks 0 and 1 are threads of this process, rank 2 is a child that is killed while all exchange.
void KillOneRank(SingleCopy single_copy, unsigned seed, bool must_abort) {
  ForkStore store;
  const auto patience = std::chrono::microseconds(std::mt19937(seed)() % 20000);
  const pid_t child = Fork([&] {
    auto transport = ConnectOneHost(store, 2, 3, Options(single_copy));
    if (!transport.ok()) return;
    RunRanks(2,
             [&](int peer) { (void)Exchange(**transport, peer, peer, ~uint64_t{0}, After(60s)); });
  });
  std::vector<std::unique_ptr<Transport>> survivors(2);
  RunRanks(2, [&](int rank) {
    auto transport = ConnectOneHost(store, rank, 3, Options(single_copy));
    EXPECT_OK(transport);
    if (transport.ok()) survivors[static_cast<size_t>(rank)] = std::move(transport).value();
  });
  if (survivors[0] == nullptr || survivors[1] == nullptr) {
    kill(child, SIGKILL);
    (void)ExitStatus(child);
    return;
  }
  std::atomic<int64_t> killed_at_ns{0};
  RunRanks(3, [&](int rank) {
    const auto now_ns = [] {
      return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    };
    if (rank == 2) {
      std::this_thread::sleep_for(patience);  // the random moment
      killed_at_ns = now_ns();
      kill(child, SIGKILL);
      if (!must_abort) return;
      for (auto& survivor : survivors) survivor->Abort(PeerLost(2, "rank 2 was killed"));
      return;
    }
    const Status status =
        Exchange(*survivors[static_cast<size_t>(rank)], 2, rank, ~uint64_t{0}, After(60s));
    EXPECT_TRUE(status.code() == Code::kPeerLost) << status;
    EXPECT_EQ(status.culprit(), 2);
    EXPECT_LT((now_ns() - killed_at_ns) / 1'000'000, 5000);
  });
  EXPECT_EQ(ExitStatus(child), 128 + SIGKILL);
  if (must_abort) return;
  // The survivors can still talk to each other.
  RunRanks(2, [&](int rank) {
    EXPECT_OK(Exchange(*survivors[static_cast<size_t>(rank)], 1 - rank, 2, 20, After(60s)));
  });
}

TEST(ShmProcesses, survivors_of_a_killed_rank_return) {
  const auto seeds = static_cast<unsigned>(testing::Repetitions(20));
  for (unsigned seed = 0; seed < seeds && !testing::CurrentTestFailed(); ++seed) {
    KillOneRank(seed % 2 == 0 ? SingleCopy::kOff : SingleCopy::kOn, seed, seed % 4 < 2);
  }
}

size_t OpenDescriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

size_t MappedInboxes() {
  std::ifstream maps("/proc/self/maps");
  size_t found = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:rabit-inbox") != std::string::npos) ++found;
  }
  return found;
}

bool HasFilesOfOurs(const char* folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("rabit-inbox")) return true;
  }
  return false;
}

TEST(ShmProcesses, nothing_is_left_behind_by_a_killed_job) {
  const size_t descriptors = OpenDescriptors();
  {
    ForkStore store;
    std::vector<pid_t> children;
    for (int rank = 0; rank < 2; ++rank) {
      children.push_back(Fork([&] {
        auto transport = ConnectOneHost(store, rank, 3, {});
        if (transport.ok()) (void)Exchange(**transport, 1 - rank, 0, ~uint64_t{0}, After(60s));
        for (;;) ::pause();  // whose peer is killed first stays until it is killed as well
      }));
    }
    auto transport = ConnectOneHost(store, 2, 3, {});
    ASSERT_OK(transport);
    EXPECT_EQ(MappedInboxes(), 3u);
    for (pid_t child : children) kill(child, SIGKILL);
    for (pid_t child : children) EXPECT_EQ(ExitStatus(child), 128 + SIGKILL);
  }
  EXPECT_FALSE(HasFilesOfOurs("/dev/shm"));
  EXPECT_FALSE(HasFilesOfOurs("/tmp"));
  EXPECT_EQ(MappedInboxes(), 0u);
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

}  // namespace
}  // namespace rabit
