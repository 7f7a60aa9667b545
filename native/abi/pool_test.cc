// Engines over one pool after the other, through the C header only.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "include/rabit_abi.h"
#include "testing/run_ranks.h"
#include "testing/sanitizer.h"
#include "testing/test.h"

namespace rabit {
namespace {

constexpr char kPoolSecret[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
using Members = std::vector<int>;

std::string TextOf(const Members& members) {
  std::string text;
  for (const int member : members) text += (text.empty() ? "" : ",") + std::to_string(member);
  return text;
}

rabit_pool* OpenPoolOf(int member, int port) {
  const std::string options = "member=" + std::to_string(member) + "\nsecret=" + kPoolSecret +
                              "\nstore=127.0.0.1:" + std::to_string(port) + "\n";
  rabit_pool* pool = nullptr;
  EXPECT_EQ(rabit_pool_open(options.c_str(), &pool), RABIT_OK) << rabit_last_error();
  return pool;
}

rabit_engine* StartOver(rabit_pool* pool, const std::string& transport, int epoch,
                        const Members& members) {
  const std::string options = "epoch=" + std::to_string(epoch) + "\nmembers=" + TextOf(members) +
                              "\ntransport=" + transport +
                              "\nlink_model=fixed\nconnect_timeout_ms=30000\n";
  rabit_engine* engine = nullptr;
  if (rabit_start_over(pool, options.c_str(), &engine) == RABIT_OK) return engine;
  ADD_FAILURE() << "epoch" << epoch << rabit_last_error();
  return nullptr;
}

// values[i] = member + i; adds them up on all ranks.
int32_t Sum(rabit_engine* engine, const std::string& name, std::vector<float>& values) {
  const int64_t shape[] = {static_cast<int64_t>(values.size())};
  rabit_request request{};
  request.struct_size = sizeof request;
  request.kind = RABIT_ALLREDUCE;
  request.reduce_op = RABIT_SUM;
  request.backend = -1;
  request.prescale = request.postscale = 1.0;
  request.name = name.c_str();
  request.input.data = values.data();
  request.input.count = shape[0];
  request.input.shape = shape;
  request.input.ndim = 1;
  request.input.dtype = RABIT_FLOAT32;
  request.input.device_kind = 1;
  request.output = request.input;
  rabit_handle handle = 0;
  const int32_t code = rabit_run(engine, &request, 20'000, &handle);
  if (handle != 0) {
    EXPECT_EQ(rabit_release(engine, handle), RABIT_OK);
  }
  return code;
}

std::vector<float> ValuesOf(int member, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(member + static_cast<int>(i % 97));
  return values;
}

// What all members get, to the bit: the numbers are small and whole.
std::vector<float> SumOf(const Members& members, size_t count) {
  std::vector<float> sum(count);
  for (const int member : members) {
    for (size_t i = 0; i < count; ++i)
      sum[i] += static_cast<float>(member + static_cast<int>(i % 97));
  }
  return sum;
}

void ExpectSums(rabit_engine* engine, int member, const Members& members) {
  for (const size_t count : {size_t{3}, size_t{1000}, size_t{400'000}}) {
    std::vector<float> values = ValuesOf(member, count);
    EXPECT_EQ(Sum(engine, "sum" + std::to_string(count), values), RABIT_OK) << rabit_last_error();
    EXPECT_TRUE(values == SumOf(members, count)) << "member" << member << "of" << TextOf(members);
  }
}

struct Store {
  Store() {
    const std::string options = std::string("secret=") + kPoolSecret + "\n";
    EXPECT_EQ(rabit_store_start(options.c_str(), &store, &port), RABIT_OK) << rabit_last_error();
  }
  ~Store() { rabit_store_stop(store); }
  rabit_store* store = nullptr;
  int32_t port = 0;
};

struct Pools {
  ~Pools() {
    for (const auto& [member, pool] : by_member) rabit_pool_close(pool);
  }
  void Open(const Members& members) {
    for (const int member : members) {
      if (by_member.find(member) == by_member.end()) {
        by_member[member] = OpenPoolOf(member, store.port);
      }
    }
  }
  Store store;
  std::map<int, rabit_pool*> by_member;
};

void SumOverChangingMembers(const std::string& transport) {
  Pools pools;
  Mutex mutex;
  std::vector<rabit_engine*> stopped;  // they last longer than those that come after them
  int epoch = 0;
  for (const Members& members :
       {Members{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 3}, {3, 1}, {3, 1, 4}, {4}, {4, 5, 0}}) {
    ++epoch;
    pools.Open(members);
    testing::RunRanks(static_cast<int>(members.size()), [&](int rank) {
      const int member = members[static_cast<size_t>(rank)];
      rabit_engine* engine = StartOver(pools.by_member.at(member), transport, epoch, members);
      if (engine == nullptr) return;
      ExpectSums(engine, member, members);
      EXPECT_EQ(rabit_stop(engine, 20'000), RABIT_OK) << rabit_last_error();
      MutexLock lock(mutex);
      stopped.push_back(engine);
    });
  }
  for (rabit_engine* const engine : stopped) rabit_free(engine);
}

TEST(Pool, engines_of_changing_members_add_up_over_tcp) { SumOverChangingMembers("tcp"); }
TEST(Pool, engines_of_changing_members_add_up_over_shared_memory) {
  SumOverChangingMembers("auto");
}

TEST(Pool, what_cannot_work_is_refused) {
  Pools pools;
  pools.Open({7});
  rabit_pool* const pool = pools.by_member.at(7);
  rabit_engine* engine = nullptr;
  const auto refused = [&](const char* options, const char* why) {
    EXPECT_EQ(rabit_start_over(pool, options, &engine), RABIT_INVALID_ARGUMENT);
    EXPECT_TRUE(std::strstr(rabit_last_error(), why) != nullptr) << rabit_last_error();
  };
  refused("epoch=1\nmembers=1,2\n", "member 7 is not among members=1,2");
  refused("epoch=1\nmembers=7,x\n", "it holds no numbers");
  refused("epoch=1\nmembers=7,7\n", "7 is there twice");
  refused("epoch=1\nmembers=\n", "it holds no numbers");

  ASSERT_EQ(rabit_start_over(pool, "epoch=3\nmembers=7\n", &engine), RABIT_OK);
  rabit_engine* second = nullptr;
  EXPECT_EQ(rabit_start_over(pool, "epoch=4\nmembers=7\n", &second), RABIT_INVALID_ARGUMENT);
  EXPECT_TRUE(std::strstr(rabit_last_error(), "stop it before") != nullptr) << rabit_last_error();
  rabit_free(engine);
  refused("epoch=3\nmembers=7\n", "needs a higher epoch than that, not 3");
}

// A process that waits until it is told where the store is, joins as member `id` and adds up until
// it is killed.
struct Victim {
  pid_t pid = -1;
  int tell = -1;
  int id = 0;
};

Victim ForkVictim(int id, const std::string& transport) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t pid = ::fork();
  if (pid != 0) {
    ::close(ends[0]);
    return {pid, ends[1], id};
  }
  ::close(ends[1]);
  int told[2] = {0, 0};  // port, epoch
  if (::read(ends[0], told, sizeof told) != sizeof told) ::_exit(0);
  const Members members{0, 1, 2, id};
  rabit_engine* const engine = StartOver(OpenPoolOf(id, told[0]), transport, told[1], members);
  for (int32_t code = RABIT_OK; engine != nullptr && code == RABIT_OK;) {
    std::vector<float> values = ValuesOf(id, 200'000);
    code = Sum(engine, "again", values);
  }
  ::_exit(1);
}

// In each round a new process comes, is killed in the middle of the sums, and the others go on
// without it.
void SurviveKills(const std::string& transport, int rounds) {
  std::vector<Victim> victims;
  for (int round = 0; round < rounds; ++round) victims.push_back(ForkVictim(3 + round, transport));
  Pools pools;
  const Members survivors{0, 1, 2};
  pools.Open(survivors);
  int epoch = 0;
  for (const Victim& victim : victims) {
    const Members all{0, 1, 2, victim.id};
    const int told[2] = {pools.store.port, ++epoch};
    rabit_engine* failed[3] = {};  // freed while the next ones run
    ASSERT_EQ(::write(victim.tell, told, sizeof told), static_cast<ssize_t>(sizeof told));
    testing::RunRanks(3, [&](int rank) {
      rabit_pool* const pool = pools.by_member.at(rank);
      rabit_engine* engine = StartOver(pool, transport, epoch, all);
      if (engine == nullptr) return;
      int32_t code = RABIT_OK;
      for (int sums = 0; code == RABIT_OK; ++sums) {
        std::vector<float> values = ValuesOf(rank, 200'000);
        code = Sum(engine, "again", values);
        if (code == RABIT_OK) {
          EXPECT_TRUE(values == SumOf(all, values.size()));
        }
        if (sums == 3 + victim.id % 5 && rank == 0) ::kill(victim.pid, SIGKILL);
      }
      EXPECT_EQ(code, RABIT_PEER_LOST) << rabit_last_error();
      EXPECT_EQ(rabit_last_culprit(), 3) << rabit_last_error();
      EXPECT_EQ(rabit_stop(engine, 20'000), RABIT_PEER_LOST) << rabit_last_error();
      failed[rank] = engine;
    });
    ++epoch;
    testing::RunRanks(3, [&](int rank) {
      rabit_engine* engine = StartOver(pools.by_member.at(rank), transport, epoch, survivors);
      if (engine == nullptr) return;
      rabit_free(failed[rank]);
      ExpectSums(engine, rank, survivors);
      EXPECT_EQ(rabit_stop(engine, 20'000), RABIT_OK) << rabit_last_error();
      rabit_free(engine);
    });
    ::close(victim.tell);
    EXPECT_EQ(::waitpid(victim.pid, nullptr, 0), victim.pid);
  }
}

TEST(Pool, survivors_of_a_kill_go_on_over_tcp) { SurviveKills("tcp", testing::Repetitions(10)); }
TEST(Pool, survivors_of_a_kill_go_on_over_shared_memory) {
  SurviveKills("auto", testing::Repetitions(10));
}

}  // namespace
}  // namespace rabit
