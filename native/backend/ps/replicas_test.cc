// Servers that are lost while others have copies of what they had.
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/ps/ps_backend.h"
#include "backend/ps/summation_server.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/mutex.h"
#include "codec/codec_adder.h"
#include "testing/backend_conformance.h"
#include "testing/codec_conformance.h"
#include "testing/inproc_transport.h"
#include "testing/run_ranks.h"
#include "testing/sanitizer.h"
#include "testing/served_exchange.h"
#include "testing/server_threads.h"
#include "testing/soon.h"
#include "testing/test.h"
#include "testing/transport_wrapper.h"

namespace rabit {
namespace {

using testing::kStride;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A server that is killed before one of its messages.
class MortalTransport final : public TransportWrapper {
 public:
  MortalTransport(std::unique_ptr<Transport> inner, std::atomic<int64_t>& sends_left)
      : TransportWrapper(std::move(inner)), sends_left_(sends_left) {}

  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    if (sends_left_.fetch_sub(1) <= 0) Abort(Aborted("this server is killed"));
    return inner().Send(peer, tag, buffer);
  }

 private:
  std::atomic<int64_t>& sends_left_;
};

// A server that takes copies of place 0 and never confirms one, while it lives.
class SilentTransport final : public TransportWrapper {
 public:
  using TransportWrapper::TransportWrapper;

  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    if (tag == PlaceTag(0, kWorld, PlaceStep::kCopyAck, 0)) return Status();
    return inner().Send(peer, tag, buffer);
  }
};

// A message that tells of a loss when it is asked a second time, as if the loss came in between.
class LateOperation final : public PendingOperation {
 public:
  explicit LateOperation(Operation inner) : inner_(std::move(inner)) {}
  Status Wait(Deadline deadline) override {
    Status status = inner_.Wait(deadline);
    if (status.code() != Code::kPeerLost || std::exchange(has_hidden_, true)) return status;
    return TimedOut("not known yet");
  }
  void Cancel() override {}

 private:
  Operation inner_;
  bool has_hidden_ = false;
};

// A worker that hears of every loss late.
class LateTransport final : public TransportWrapper {
 public:
  using TransportWrapper::TransportWrapper;

  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    return Operation(std::make_unique<LateOperation>(inner().Send(peer, tag, buffer)));
  }
  Operation Recv(int peer, Tag tag, Bytes buffer) override {
    return Operation(std::make_unique<LateOperation>(inner().Recv(peer, tag, buffer)));
  }
};

struct Silence {
  int server = -1;  // that says nothing
  SilenceLimit limit = {};
  bool hides_losses = false;  // from workers, for one look
};

// Workers and servers in one process.
class ReplicatedJob {
 public:
  ReplicatedJob(int workers, int servers, bool is_async, const Silence& silence = {})
      : workers_(workers), fabric_(workers + servers), sends_left_(static_cast<size_t>(servers)) {
    Places places = Places::Alike(workers, servers);
    for (int server = workers; server < workers + servers; ++server) {
      places.bandwidth_of[static_cast<size_t>(server)] = 1e6;  // they sum everything
    }
    for (int rank = 0; rank < workers; ++rank) {
      std::unique_ptr<Transport> worker = fabric_.Connect(rank);
      if (silence.hides_losses) worker = std::make_unique<LateTransport>(std::move(worker));
      backends_.push_back(std::make_unique<PsBackend>(std::move(worker), places,
                                                      testing::NodeNames(servers),
                                                      PsStreams{1, is_async}, 2, MakeCodecAdder(),
                                                      Logger(LogLevel::kWarning, rank, Keep())));
    }
    for (int server = 0; server < servers; ++server) {
      auto& left = sends_left_[static_cast<size_t>(server)];
      left.store(kNever);
      endpoints_.push_back(
          std::make_unique<MortalTransport>(fabric_.Connect(workers + server), left));
      if (server != silence.server) continue;
      endpoints_.back() = std::make_unique<SilentTransport>(std::move(endpoints_.back()));
    }
    for (int server = 0; server < servers; ++server) {
      threads_.emplace_back([this, server, is_async, limit = silence.limit] {
        SummationServer each(std::move(endpoints_[static_cast<size_t>(server)]), workers_, 1,
                             is_async, 2, adder_.get(), limit);
        (void)each.Serve();
      });
    }
  }
  ~ReplicatedJob() {
    backends_.clear();  // before the servers, which end with them
    for (std::thread& thread : threads_) thread.join();
  }

  // Before its message of that number from now on.
  void Kill(int server, int64_t sends) { sends_left_[static_cast<size_t>(server)].store(sends); }
  bool HasDied(int server) const { return sends_left_[static_cast<size_t>(server)].load() < 0; }
  // Two servers, which live.
  void Cut(int a, int b) { fabric_.Cut(workers_ + a, workers_ + b); }
  PsBackend& operator[](int rank) { return *backends_[static_cast<size_t>(rank)]; }
  int workers() const { return workers_; }
  // What workers have logged.
  std::vector<std::string> Lines() {
    MutexLock lock(mutex_);
    return lines_;
  }

  Status Update(int rank, PushMode mode, std::vector<float>& values) {
    return (*this)[rank].Update(
        mode, 99, {values.data(), static_cast<int64_t>(values.size()), DType::kFloat32, {}},
        testing::Soon());
  }

 private:
  Logger::Sink Keep() {
    return [this](LogLevel, std::string_view line) {
      MutexLock lock(mutex_);
      lines_.emplace_back(line);
    };
  }

  const int workers_;
  Mutex mutex_;
  std::vector<std::string> lines_ RABIT_GUARDED_BY(mutex_);
  const std::unique_ptr<const EncodingAdder> adder_ = MakeCodecAdder();
  testing::InprocFabric fabric_;
  std::vector<std::atomic<int64_t>> sends_left_;
  std::vector<std::unique_ptr<Transport>> endpoints_;
  std::vector<std::unique_ptr<PsBackend>> backends_;
  std::vector<std::thread> threads_;
};

// Values whose sum depends on the order.
std::vector<float> OrderedValues(int rank, uint64_t step, size_t count) {
  std::vector<float> values(count);
  uint64_t state = step * 64 + static_cast<uint64_t>(rank) + 1;
  for (float& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<int64_t>(state >> 20) % 1'000'003) *
            (state & 1 ? 1e-4f : 1e4f);
  }
  return values;
}

std::vector<float> SumInOrder(int workers, uint64_t step, size_t count) {
  std::vector<float> sum = OrderedValues(0, step, count);
  for (int rank = 1; rank < workers; ++rank) {
    const std::vector<float> theirs = OrderedValues(rank, step, count);
    for (size_t i = 0; i < count; ++i) sum[i] += theirs[i];
  }
  return sum;
}

// One tensor is small, others have chunks enough to be in the middle of.
constexpr size_t kCounts[] = {700, 150'000, 30'000};

// One step of all workers; what each of them got is counted if it has the right bits.
int SumRightly(ReplicatedJob& job, uint64_t step, std::vector<testing::Member>& members) {
  std::atomic<int> right{0};
  const size_t count = kCounts[step % std::size(kCounts)];
  const std::vector<float> wanted = SumInOrder(job.workers(), step, count);
  testing::RunRanks(job.workers(), [&](int rank) {
    std::vector<float> mine = OrderedValues(rank, step, count);
    EXPECT_OK(testing::Over(job[rank].Allreduce(
        members[static_cast<size_t>(rank)].Next(),
        {mine.data(), static_cast<int64_t>(count), DType::kFloat32, {}}, ReduceOp::kSum)));
    right += std::memcmp(mine.data(), wanted.data(), count * sizeof(float)) == 0;
  });
  return right.load();
}

std::vector<testing::Member> MembersOf(ReplicatedJob& job) {
  std::vector<testing::Member> members;
  for (int rank = 0; rank < job.workers(); ++rank) {
    members.emplace_back(job[rank], testing::WorldOf(job.workers(), rank), 0);
  }
  return members;
}

TEST(PsReplicas, a_server_may_be_killed_before_any_of_its_messages) {
  constexpr int kWorkers = 3, kServers = 3;
  for (int victim = 0; victim < kServers; ++victim) {
    bool has_died = true;
    for (int64_t sends = victim % kStride; has_died; sends += kStride * (1 + sends / 12)) {
      ReplicatedJob job(kWorkers, kServers, false);
      std::vector<testing::Member> members = MembersOf(job);
      job.Kill(victim, sends);
      for (uint64_t step = 0; step < 6; ++step) {
        EXPECT_EQ(SumRightly(job, step, members), kWorkers)
            << "server " << victim << " killed before message " << sends << ", step " << step;
      }
      has_died = job.HasDied(victim);
    }
  }
}

// What a rank gets, with its residuals, of a tensor in each of some steps.
std::vector<testing::Floats> ReduceSteps(Exchange& wire) {
  const auto codec = MakeCodec("minmax8:block=512");
  std::vector<testing::Floats> found;
  for (uint32_t step = 0; step < 4; ++step) {
    const size_t count = step % 2 == 0 ? 900 : 220'000;
    testing::Floats in = OrderedValues(wire.rank(), step, count), out(count);
    testing::Floats residual(in.size(), 0.01f);
    CodecPart part = testing::PartOf(in, out, step);
    part.residual = testing::ViewOf(residual);
    EXPECT_OK((*codec)->Reduce(wire, {&part, 1}));
    found.push_back(std::move(out));
    found.push_back(std::move(residual));
  }
  return found;
}

TEST(PsReplicas, encodings_are_added_up_when_a_server_is_killed) {
  constexpr int kWorkers = 2;
  std::vector<std::vector<testing::Floats>> wanted(kWorkers);
  testing::RunExchange(kWorkers, [&](Exchange& wire) {
    wanted[static_cast<size_t>(wire.rank())] = ReduceSteps(wire);
  });
  for (int victim = 0; victim < 2; ++victim) {
    bool has_died = true;
    for (int64_t sends = victim % kStride; has_died; sends += kStride * (1 + sends / 6)) {
      ReplicatedJob job(kWorkers, 2, false);
      std::vector<testing::Member> members = MembersOf(job);
      testing::LocalHub hub(kWorkers);
      job.Kill(victim, sends);
      testing::RunRanks(kWorkers, [&](int rank) {
        testing::ServedExchange wire(hub, members[static_cast<size_t>(rank)]);
        EXPECT_TRUE(ReduceSteps(wire) == wanted[static_cast<size_t>(rank)])
            << "server " << victim << " killed before message " << sends;
        EXPECT_GT(wire.bytes_served(), 400'000);
      });
      has_died = job.HasDied(victim);
    }
  }
}

// With losses that are found while a rank waits, and those that it finds when it looks around.
void LoseAllServers(bool hides_losses) {
  ReplicatedJob job(3, 3, false, {.hides_losses = hides_losses});
  std::vector<testing::Member> members = MembersOf(job);
  EXPECT_EQ(SumRightly(job, 1, members), 3);
  job.Kill(0, 5);
  EXPECT_EQ(SumRightly(job, 4, members), 3);
  EXPECT_EQ(SumRightly(job, 1, members), 3);  // by now all has been copied again
  job.Kill(1, 5);
  EXPECT_EQ(SumRightly(job, 4, members), 3);
  EXPECT_EQ(SumRightly(job, 1, members), 3);
  EXPECT_TRUE(job.HasDied(0));
  EXPECT_TRUE(job.HasDied(1));

  job.Kill(2, 0);
  testing::RunRanks(3, [&](int rank) {
    std::vector<float> values(1000);
    const Status status = testing::Over(
        job[rank].Allreduce(members[static_cast<size_t>(rank)].Next(),
                            {values.data(), 1000, DType::kFloat32, {}}, ReduceOp::kSum));
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_TRUE(testing::Has(status.message(), "server 2 on host node is lost")) << status;
    EXPECT_TRUE(testing::Has(status.message(), "all others that could sum")) << status;
  });
}

TEST(PsReplicas, servers_may_be_lost_one_after_another_until_one_is_left) {
  LoseAllServers(false);
  LoseAllServers(true);
}

// Each worker finds another one first, and the servers behind wait for all workers.
TEST(PsReplicas, servers_that_have_nothing_of_each_other_may_be_lost_at_once) {
  for (int64_t sends = 0; sends < 60; sends += 4 * kStride) {
    ReplicatedJob job(3, 4, false);
    std::vector<testing::Member> members = MembersOf(job);
    job.Kill(0, sends);
    job.Kill(2, sends);
    for (uint64_t step = 0; step < 6; ++step) EXPECT_EQ(SumRightly(job, step, members), 3);
    EXPECT_TRUE(job.HasDied(0));
    EXPECT_TRUE(job.HasDied(2));
  }
}

// Each goes on without the other; a third one has the copies.
TEST(PsReplicas, servers_that_cannot_reach_each_other_go_on) {
  for (const int servers : {2, 3}) {
    for (const uint64_t moment : {1, 4}) {
      ReplicatedJob job(2, servers, false);
      std::vector<testing::Member> members = MembersOf(job);
      std::thread cutter;
      for (uint64_t step = 0; step < 6; ++step) {
        if (step == moment) cutter = std::thread([&job] { job.Cut(0, 1); });
        EXPECT_EQ(SumRightly(job, step, members), 2) << servers << " servers, step " << step;
      }
      cutter.join();
      for (int server = 0; server < servers; ++server) EXPECT_FALSE(job.HasDied(server));
    }
  }
}

// The second server cannot reach the first; the third one has its copies.
TEST(PsReplicas, a_server_that_was_cut_off_leaves_the_place_to_the_one_with_the_copies) {
  for (const uint64_t cut_at : {0, 1, 3}) {
    ReplicatedJob job(2, 3, false);
    std::vector<testing::Member> members = MembersOf(job);
    for (uint64_t step = 0; step < 8; ++step) {
      if (step == cut_at) job.Cut(0, 1);
      if (step == 5) job.Kill(0, 0);
      EXPECT_EQ(SumRightly(job, step, members), 2) << "cut at " << cut_at << ", step " << step;
    }
  }
}

TEST(PsReplicas, a_server_that_lives_and_says_nothing_is_told_of_and_gets_no_copies) {
  // The third server answers, but where processors are busy it may take its time.
  const auto time = std::chrono::seconds(3);
  for (const int servers : {2, 3}) {
    std::atomic<int> told{0}, silent{0};
    const SilenceLimit limit{time, [&](int rank) {
                               silent.store(rank);
                               ++told;
                             }};
    {
      ReplicatedJob job(2, servers, false, {1, limit});
      std::vector<testing::Member> members = MembersOf(job);
      for (uint64_t step = 0; step < 3; ++step) EXPECT_EQ(SumRightly(job, step, members), 2);
    }
    EXPECT_EQ(told.load(), 1);
    EXPECT_EQ(silent.load(), 2 + 1);
  }
}

TEST(PsReplicas, a_server_that_missed_sums_says_so_when_it_is_asked_for_them) {
  ReplicatedJob job(2, 2, false);
  std::vector<testing::Member> members = MembersOf(job);
  EXPECT_EQ(SumRightly(job, 1, members), 2);
  job.Cut(0, 1);
  EXPECT_EQ(SumRightly(job, 4, members), 2);

  job.Kill(0, 0);

  testing::RunRanks(2, [&](int rank) {
    std::vector<float> mine(150'000);
    const Status status = testing::Over(
        job[rank].Allreduce(members[static_cast<size_t>(rank)].Next(),
                            {mine.data(), 150'000, DType::kFloat32, {}}, ReduceOp::kSum));
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_TRUE(testing::Has(status.message(), "it took over what server 0 had")) << status;
  });
}

TEST(PsReplicas, no_update_is_lost_or_doubled_when_a_server_is_killed) {
  constexpr int kWorkers = 3, kSteps = 4;
  constexpr size_t kCount = 90'001;
  for (int victim = 0; victim < 3; ++victim) {
    bool has_died = true;
    for (int64_t sends = victim % kStride; has_died; sends += kStride * (1 + sends / 12)) {
      ReplicatedJob job(kWorkers, 3, true);
      job.Kill(victim, sends);
      testing::RunRanks(kWorkers, [&](int rank) {
        std::vector<float> values(kCount, 5);
        EXPECT_OK(job.Update(rank, PushMode::kFill, values));
        for (int64_t step = 1; step <= kSteps; ++step) {
          values.assign(kCount, 1);
          EXPECT_OK(job.Update(rank, PushMode::kAdd, values));
          int64_t clock[2] = {step, 1};
          EXPECT_OK(job[rank].Update(PushMode::kClock, 0, {clock, 2, DType::kInt64, {}},
                                     testing::Soon()));
          EXPECT_LE(clock[0], 1);
        }
        int64_t leaving[2] = {-1, 1};
        EXPECT_OK(job[rank].Update(PushMode::kClock, 0, {leaving, 2, DType::kInt64, {}},
                                   testing::Soon()));
      });
      has_died = job.HasDied(victim);

      std::vector<float> now(kCount);
      EXPECT_OK(job.Update(0, PushMode::kFill, now));
      EXPECT_TRUE(now == std::vector<float>(kCount, 5 + kWorkers * kSteps))
          << "server " << victim << " killed before message " << sends;
    }
  }
}

// Parameters are on two servers, and nowhere else.
TEST(PsReplicas, parameters_of_two_lost_servers_are_missed) {
  ReplicatedJob job(2, 3, true);
  std::vector<float> values(90'001, 1);
  EXPECT_OK(job.Update(0, PushMode::kFill, values));
  job.Kill(0, 0);
  EXPECT_OK(job.Update(0, PushMode::kAdd, values));
  job.Kill(1, 0);

  const Status status = job.Update(0, PushMode::kAdd, values);

  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_TRUE(testing::Has(status.message(), "it took over what server 0 had")) << status;
}

TEST(PsReplicas, rank_0_tells_of_each_server_that_is_lost_and_who_sums_for_it) {
  ReplicatedJob job(3, 3, false);
  std::vector<testing::Member> members = MembersOf(job);
  EXPECT_EQ(SumRightly(job, 1, members), 3);
  EXPECT_EQ(job.Lines().size(), 0u);
  for (const int victim : {2, 0}) {
    job.Kill(victim, 0);
    for (int step = 0; step < 4; ++step) EXPECT_EQ(SumRightly(job, 1, members), 3);
  }

  const std::vector<std::string> lines = job.Lines();

  ASSERT_EQ(lines.size(), 2u);
  const std::string first = "rabit[0]: warning: server 2 on host node is lost (it counts as rank 5)";
  EXPECT_EQ(lines[0].substr(0, first.size()), first);
  EXPECT_TRUE(lines[0].ends_with(". The job continues; server 0 sums its part")) << lines[0];
  EXPECT_TRUE(testing::Has(lines[1], "server 0 on host node is lost")) << lines[1];
  EXPECT_TRUE(lines[1].ends_with("server 1 sums its part")) << lines[1];
}

TEST(PsReplicas, statistics_tell_which_server_is_lost) {
  ReplicatedJob job(2, 2, false);
  std::vector<testing::Member> members = MembersOf(job);
  job.Kill(1, 0);
  EXPECT_EQ(SumRightly(job, 1, members), 2);

  JsonWriter json;
  job[0].WriteStatistics(json);

  const std::string text = json.Take();
  EXPECT_TRUE(testing::Has(text, "\"is_lost\":false")) << text;
  EXPECT_TRUE(testing::Has(text, "\"is_lost\":true")) << text;
}

}  // namespace
}  // namespace rabit
