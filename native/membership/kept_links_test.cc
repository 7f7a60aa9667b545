// TCP connections that outlive the transports over them.
#include <sys/socket.h>
#include <sys/stat.h>

#include <map>
#include <random>
#include <set>

#include "membership/kept_sockets.h"
#include "testing/memory_store.h"
#include "testing/run_ranks.h"
#include "testing/sanitizer.h"
#include "testing/test.h"
#include "transport/tcp/tcp_transport.h"

namespace rabit {
namespace {

using namespace std::chrono_literals;

constexpr int kStreams = 2;

// What a process has as long as it lives.
struct Process {
  std::unique_ptr<Listener> listener;
  KeptSockets kept;
  std::unique_ptr<Transport> transport;  // of the epoch that it is in

  std::set<ino_t> Sockets() {
    std::set<ino_t> found;
    for (int member = 0; member < 8; ++member) {
      for (int index = 0; index < kStreams; ++index) {
        auto kept_socket = kept.Take("tcp", member, index);
        if (!kept_socket) continue;
        struct stat about{};
        EXPECT_EQ(::fstat(kept_socket->fd.get(), &about), 0);
        found.insert(about.st_ino);
        kept.Keep("tcp", member, index, *std::move(kept_socket));
      }
    }
    return found;
  }
};

struct Job {
  Job() { secret.key.fill(9); }

  void Begin(int member, uint64_t epoch) {
    Process& process = processes[member];
    auto listener = Listener::Open("127.0.0.1:0", secret, epoch, member);
    EXPECT_OK(listener);
    process.listener = std::move(*listener);
    EXPECT_OK(store.Set("member/address/" + std::to_string(member), process.listener->address()));
  }

  Status OpenOne(uint64_t epoch, const std::vector<int>& members, int rank,
                 std::chrono::nanoseconds time = 20s) {
    Process& process = processes.at(members[static_cast<size_t>(rank)]);
    process.listener->SetEpoch(epoch);
    process.kept.KeepOnly(members);
    Topology topology;
    topology.host_of.assign(members.size(), 0);
    const ConnectContext context{.rank = rank,
                                 .size = static_cast<int>(members.size()),
                                 .epoch = epoch,
                                 .store = store,
                                 .listener = *process.listener,
                                 .secret = secret,
                                 .topology = topology,
                                 .streams = kStreams,
                                 .deadline = After(time),
                                 .members = {members},
                                 .keeper = &process.kept};
    auto transport = ConnectTcpTransport(context, TcpOptions{});
    if (transport.ok()) process.transport = std::move(*transport);
    return transport.status();
  }

  void Open(uint64_t epoch, const std::vector<int>& members) {
    for (const int member : members) {
      if (processes.find(member) == processes.end()) Begin(member, epoch);
    }
    testing::RunRanks(static_cast<int>(members.size()),
                      [&](int rank) { EXPECT_OK(OpenOne(epoch, members, rank)); });
  }

  Transport& At(int member) { return *processes.at(member).transport; }

  testing::MemoryStore store;
  Secret secret;
  std::map<int, Process> processes;
};

std::byte Letter(uint64_t epoch, int from, int to) {
  return static_cast<std::byte>(epoch * 31 + static_cast<uint64_t>(from * 7 + to));
}

// Every rank tells every other something that names the two and the epoch.
void ExchangeAll(Job& job, uint64_t epoch, const std::vector<int>& members, size_t bytes) {
  const auto size = static_cast<int>(members.size());
  testing::RunRanks(size, [&](int rank) {
    Transport& transport = job.At(members[static_cast<size_t>(rank)]);
    for (int stream = 0; stream < kStreams; ++stream) {
      std::vector<std::vector<std::byte>> in(members.size(), std::vector<std::byte>(bytes));
      std::vector<std::vector<std::byte>> out = in;
      std::vector<Operation> operations;
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        out[static_cast<size_t>(peer)].assign(bytes, Letter(epoch, rank, peer));
        operations.push_back(
            transport.Recv(peer, MakeTag(stream, 5), in[static_cast<size_t>(peer)]));
        operations.push_back(
            transport.Send(peer, MakeTag(stream, 5), out[static_cast<size_t>(peer)]));
      }
      for (Operation& each : operations) EXPECT_OK(each.Wait(After(20s)));
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        const std::vector<std::byte> expected(bytes, Letter(epoch, peer, rank));
        EXPECT_TRUE(in[static_cast<size_t>(peer)] == expected)
            << "epoch" << epoch << "from rank" << peer << "to rank" << rank;
      }
    }
  });
}

void CloseAll(Job& job, const std::vector<int>& members) {
  testing::RunRanks(static_cast<int>(members.size()), [&](int rank) {
    job.processes.at(members[static_cast<size_t>(rank)]).transport.reset();
  });
}

TEST(KeptLinks, the_same_members_go_on_over_the_same_connections) {
  Job job;
  const std::vector<int> members{0, 1, 2};
  job.Open(1, members);
  ExchangeAll(job, 1, members, 1000);
  CloseAll(job, members);
  const std::set<ino_t> before = job.processes[1].Sockets();
  EXPECT_EQ(before.size(), size_t{2 * kStreams});

  for (uint64_t epoch = 2; epoch < 6; ++epoch) {
    job.Open(epoch, members);
    ExchangeAll(job, epoch, members, 300'000);
    CloseAll(job, members);
  }
  EXPECT_TRUE(job.processes[1].Sockets() == before);
}

TEST(KeptLinks, ranks_change_and_processes_come_and_go) {
  Job job;
  uint64_t epoch = 0;
  for (const std::vector<int>& members : {std::vector<int>{0, 1, 2, 3},
                                          {0, 1, 3},
                                          {3, 1, 0},
                                          {1, 3},
                                          {1, 4, 3},
                                          {5, 4},
                                          {5, 4, 6, 7}}) {
    ++epoch;
    job.Open(epoch, members);
    ExchangeAll(job, epoch, members, 100'000);
    CloseAll(job, members);
    if (epoch == 3) job.processes.erase(0);
  }
}

TEST(KeptLinks, frames_of_an_earlier_epoch_are_dropped_and_counted) {
  Job job;
  const std::vector<int> members{0, 1};
  job.Open(1, members);
  const std::vector<std::byte> stale(200'000, std::byte{1});
  {
    // Nobody asks for them: they lie in the socket when the epoch ends, or were read in vain.
    Operation small = job.At(0).Send(1, MakeTag(0, 5), ConstBytes(stale).first(1000));
    Operation large = job.At(0).Send(1, MakeTag(0, 6), stale);
    EXPECT_OK(small.Wait(After(20s)));
  }
  // One after the other: what rank 0 says last reaches a rank 1 that listens no more.
  CloseAll(job, {1});
  CloseAll(job, {0});
  job.Open(2, members);
  ExchangeAll(job, 2, members, 1000);

  EXPECT_GT(job.At(1).counters().frames_late, 0u);
}

// Both ends stop anywhere in the middle of large messages, of which each may have written and read
// a part.
TEST(KeptLinks, an_epoch_that_is_broken_off_leaves_nothing_behind) {
  Job job;
  const std::vector<int> members{0, 1};
  std::mt19937 random(17);
  const std::vector<std::byte> out(8 << 20, std::byte{3});
  constexpr auto kEpochs = uint64_t{testing::Repetitions(40)};
  for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    job.Open(epoch, members);
    ExchangeAll(job, epoch, members, 70'000);
    const std::chrono::microseconds times[] = {std::chrono::microseconds(random() % 3000),
                                               std::chrono::microseconds(random() % 3000)};
    testing::RunRanks(2, [&](int rank) {
      std::vector<std::byte> in(out.size());
      Operation receive = job.At(rank).Recv(1 - rank, MakeTag(0, 9), in);
      Operation send = job.At(rank).Send(1 - rank, MakeTag(0, 9), out);
      (void)receive.Wait(After(times[rank]));
      job.At(rank).Abort(Aborted("the test breaks off"));
      (void)send.Wait(After(20s));
      (void)receive.Wait(After(20s));
    });
    CloseAll(job, members);
  }
  EXPECT_EQ(job.processes[0].Sockets().size(), size_t{kStreams});
}

// An end that stops in the middle of a payload has its rest before the next header, however little
// that is.
TEST(KeptLinks, the_rest_of_a_payload_that_nobody_reads_is_passed_over) {
  Job job;
  const std::vector<int> members{0, 1};
  job.Open(1, members);
  ExchangeAll(job, 1, members, 1000);
  CloseAll(job, members);
  const std::set<ino_t> before = job.processes[1].Sockets();
  for (int index = 0; index < kStreams; ++index) {
    auto writer = job.processes[0].kept.Take("tcp", 1, index);
    auto reader = job.processes[1].kept.Take("tcp", 0, index);
    if (!writer || !reader) continue;
    // What is on its way is whole; the rest of a payload is as if it followed.
    std::byte passed[4096];
    while (::recv(reader->fd.get(), passed, sizeof passed, MSG_DONTWAIT) > 0) {
    }
    reader->unread.clear();
    reader->to_discard = static_cast<size_t>(700 + index);
    writer->unsent.insert(writer->unsent.begin(), reader->to_discard, std::byte{0x5a});
    job.processes[0].kept.Keep("tcp", 1, index, *std::move(writer));
    job.processes[1].kept.Keep("tcp", 0, index, *std::move(reader));
  }

  job.Open(2, members);
  ExchangeAll(job, 2, members, 100'000);

  EXPECT_EQ(job.At(1).counters().frames_corrupt, 0u);
  CloseAll(job, members);
  EXPECT_TRUE(job.processes[1].Sockets() == before);
}

TEST(KeptLinks, a_member_that_was_left_out_is_told_and_not_heard) {
  Job job;
  job.Open(1, {0, 1, 2});
  ExchangeAll(job, 1, {0, 1, 2}, 100);
  CloseAll(job, {0, 1});
  job.Open(2, {0, 1});

  // It knows nothing of that, as one that was stopped and goes on.
  const std::vector<std::byte> out(1000, std::byte{9});
  std::vector<std::byte> in(1000);
  for (const int peer : {0, 1}) {
    (void)job.At(2).Send(peer, MakeTag(0, 5), out).Wait(After(20s));  // the kernel may take it
    EXPECT_EQ(job.At(2).Recv(peer, MakeTag(0, 5), in).Wait(After(20s)).code(), Code::kPeerLost);
  }
  ExchangeAll(job, 2, {0, 1}, 1000);

  // What it opens again is of an epoch that is over.
  job.processes.at(2).transport.reset();
  const Status refused = job.OpenOne(1, {0, 1, 2}, 2);
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("gone on to epoch 2"), std::string::npos) << refused;
}

TEST(KeptLinks, a_connection_that_only_one_end_has_kept_is_made_anew) {
  Job job;
  job.Open(1, {0, 1});
  CloseAll(job, {0, 1});
  job.processes.at(0).kept.KeepOnly({});
  job.Open(2, {0, 1});
  ExchangeAll(job, 2, {0, 1}, 1000);
  CloseAll(job, {0, 1});
  job.processes.at(1).kept.KeepOnly({});
  job.Open(3, {0, 1});
  ExchangeAll(job, 3, {0, 1}, 1000);
}

TEST(KeptLinks, a_connection_that_only_one_end_knows_is_greeted_there) {
  Job job;
  job.Open(1, {0, 1});
  CloseAll(job, {0, 1});
  Process& process = job.processes.at(1);
  const std::set<ino_t> before = process.Sockets();
  for (int index = 0; index < kStreams; ++index) {
    auto kept = process.kept.Take("tcp", 0, index);
    ASSERT_TRUE(kept);
    kept->tuning.reset();
    process.kept.Keep("tcp", 0, index, *std::move(kept));
  }

  job.Open(2, {0, 1});
  ExchangeAll(job, 2, {0, 1}, 1000);

  CloseAll(job, {0, 1});
  EXPECT_TRUE(process.Sockets() == before);
}

TEST(KeptLinks, who_is_ahead_waits_for_the_others) {
  Job job;
  job.Begin(0, 1);
  job.Begin(1, 1);
  std::thread ahead([&] { EXPECT_OK(job.OpenOne(2, {0, 1}, 1)); });
  // Rank 1 dials rank 0, which is of epoch 1 still.
  EXPECT_EQ(job.OpenOne(1, {0, 1}, 0, 300ms).code(), Code::kTimedOut);
  EXPECT_OK(job.OpenOne(2, {0, 1}, 0));
  ahead.join();
  ExchangeAll(job, 2, {0, 1}, 1000);
}

}  // namespace
}  // namespace rabit
