// What every method of a Backend must do, for the whole job, for subgroups and on several lanes at
// once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "arithmetic/reduce.h"
#include "backend/backend.h"
#include "testing/own_memory.h"
#include "testing/run_ranks.h"
#include "testing/sanitizer.h"
#include "testing/test.h"

namespace rabit::testing {

// The backends of `size` connected ranks, by rank.  Destroyed together.
using BackendMaker = std::function<std::vector<std::unique_ptr<Backend>>(int size)>;
using Values = std::vector<int32_t>;

inline Bytes BytesOf(Values& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(int32_t)};
}
inline TensorView ViewOf(Values& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DType::kInt32, {}};
}

// One member of a group that calls one collective after the other, in the same order as the others.
class Member {
 public:
  Member(Backend& backend, Group group, int lane)
      : backend_(backend), group_(std::move(group)), lane_(lane) {}

  int index() const { return group_.my_index; }
  int size() const { return group_.size(); }
  Backend& backend() { return backend_; }
  LaneContext Next() {
    return {lane_, MakeTag(lane_, ++sequence_), After(std::chrono::seconds(60)), group_};
  }
  // Of a reduction that ends as an average.
  LaneContext NextMean() {
    LaneContext lane = Next();
    lane.epilogue = {size(), 1.0};
    return lane;
  }

 private:
  Backend& backend_;
  const Group group_;
  const int lane_;
  uint64_t sequence_ = 0;
};

// The end of a collective; the calls themselves have deadlines as well.
inline Status Over(Operation operation) { return operation.Wait(After(std::chrono::seconds(120))); }

// Part r of an uneven division: r elements more than `base`, and nothing for every third rank.
inline int64_t UnevenPart(int64_t base, int rank) { return rank % 3 == 2 ? 0 : base + rank; }

inline std::vector<int64_t> UnevenParts(int64_t base, int size) {
  std::vector<int64_t> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(UnevenPart(base, rank));
  return parts;
}
inline std::vector<int64_t> InBytes(std::vector<int64_t> counts) {
  for (int64_t& count : counts) count *= static_cast<int64_t>(sizeof(int32_t));
  return counts;
}
inline size_t Sum(const std::vector<int64_t>& parts) {
  return static_cast<size_t>(std::accumulate(parts.begin(), parts.end(), int64_t{0}));
}

// Element i of what rank r contributes.
[[gnu::always_inline]] inline int32_t Element(int rank, int64_t i) {
  return static_cast<int32_t>(rank * 100'003 + i);
}
RABIT_OWN_MEMORY inline void AddContribution(int32_t* at, int64_t count, int rank) {
  for (int64_t i = 0; i < count; ++i) {
    const auto element = static_cast<uint32_t>(Element(rank, i));  // sums wrap
    at[i] = static_cast<int32_t>(static_cast<uint32_t>(at[i]) + element);
  }
}
inline Values Contribution(int rank, int64_t count) {
  Values values(static_cast<size_t>(count));
  AddContribution(values.data(), count, rank);
  return values;
}
// The parts of all ranks one after the other.
inline Values Concatenation(const std::vector<int64_t>& parts) {
  Values all;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Values part = Contribution(static_cast<int>(rank), parts[rank]);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}
inline Values SumOfContributions(int size, int64_t count) {
  Values sum(static_cast<size_t>(count));
  for (int rank = 0; rank < size; ++rank) AddContribution(sum.data(), count, rank);
  return sum;
}

inline Values MeanOfContributions(int size, int64_t count) {
  std::vector<Values> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(Contribution(rank, count));
  Values mean;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    int64_t sum = 0;
    for (const Values& values : all) sum += values[i];
    mean.push_back(static_cast<int32_t>(sum / size));
  }
  return mean;
}

inline void CheckAllreduceAndReduce(Member& me, int64_t count) {
  Values values = Contribution(me.index(), count);
  EXPECT_OK(Over(me.backend().Allreduce(me.Next(), ViewOf(values), ReduceOp::kSum)));
  EXPECT_TRUE(values == SumOfContributions(me.size(), count)) << "allreduce of " << count;

  if (me.backend().applies_epilogues()) {
    values = Contribution(me.index(), count);
    EXPECT_OK(Over(me.backend().Allreduce(me.NextMean(), ViewOf(values), ReduceOp::kSum)));
    EXPECT_TRUE(values == MeanOfContributions(me.size(), count)) << "a mean of " << count;
  }

  for (int root = 0; root < me.size(); ++root) {
    values = Contribution(me.index(), count);
    EXPECT_OK(Over(me.backend().Reduce(me.Next(), ViewOf(values), ReduceOp::kSum, root)));
    if (me.index() == root) {
      EXPECT_TRUE(values == SumOfContributions(me.size(), count)) << "reduce of " << count;
    }
    if (!me.backend().applies_epilogues()) continue;
    values = Contribution(me.index(), count);
    EXPECT_OK(Over(me.backend().Reduce(me.NextMean(), ViewOf(values), ReduceOp::kSum, root)));
    if (me.index() != root) continue;
    EXPECT_TRUE(values == MeanOfContributions(me.size(), count)) << "a mean of " << count;
  }
}

inline void CheckReduceScatter(Member& me, int64_t base, bool is_in_place) {
  const std::vector<int64_t> parts = UnevenParts(base, me.size());
  Values in = Contribution(me.index(), static_cast<int64_t>(Sum(parts)));
  const int64_t begin = std::accumulate(parts.begin(), parts.begin() + me.index(), int64_t{0});
  const int64_t count = parts[static_cast<size_t>(me.index())];
  const Values in_before = in;
  Values out(static_cast<size_t>(count));
  TensorView out_view = ViewOf(out);
  if (is_in_place) out_view.data = in.data() + begin;

  EXPECT_OK(
      Over(me.backend().ReduceScatter(me.Next(), ViewOf(in), out_view, parts, ReduceOp::kSum)));

  const auto total = static_cast<int64_t>(Sum(parts));
  const Values sum = SumOfContributions(me.size(), total);
  const auto* seen = static_cast<const int32_t*>(out_view.data);
  EXPECT_TRUE(std::equal(seen, seen + count, sum.begin() + begin)) << "reducescatter of " << base;
  if (is_in_place) std::copy_n(in_before.begin() + begin, count, in.begin() + begin);
  EXPECT_TRUE(in == in_before) << "reducescatter of " << base << " wrote to its input";

  if (!me.backend().applies_epilogues()) return;
  EXPECT_OK(
      Over(me.backend().ReduceScatter(me.NextMean(), ViewOf(in), out_view, parts, ReduceOp::kSum)));
  EXPECT_TRUE(std::equal(seen, seen + count, MeanOfContributions(me.size(), total).begin() + begin))
      << "a scattered mean of " << base;
}

inline void CheckAllgather(Member& me, int64_t base) {
  const std::vector<int64_t> parts = UnevenParts(base, me.size());
  Values mine = Contribution(me.index(), parts[static_cast<size_t>(me.index())]);
  Values all(Sum(parts));
  EXPECT_OK(Over(me.backend().Allgather(me.Next(), BytesOf(mine), BytesOf(all), InBytes(parts))));
  EXPECT_TRUE(all == Concatenation(parts)) << "allgather of " << base;
}

inline void CheckBroadcast(Member& me, int64_t count) {
  for (int root = 0; root < me.size(); ++root) {
    Values values = Contribution(me.index(), count);
    EXPECT_OK(Over(me.backend().Broadcast(me.Next(), BytesOf(values), root)));
    EXPECT_TRUE(values == Contribution(root, count)) << "broadcast of " << count;
  }
}

// Rank r sends r + peer elements to each peer, every seventh pair nothing.
inline void CheckAlltoall(Member& me) {
  const auto count = [](int from, int to) {
    return (from + 2 * to) % 7 == 0 ? int64_t{0} : int64_t{5} + from + to;
  };
  std::vector<int64_t> send, receive;
  Values in, expected;
  for (int peer = 0; peer < me.size(); ++peer) {
    send.push_back(count(me.index(), peer));
    receive.push_back(count(peer, me.index()));
    for (int64_t i = 0; i < send.back(); ++i) in.push_back(Element(me.index(), peer * 50 + i));
    for (int64_t i = 0; i < receive.back(); ++i) {
      expected.push_back(Element(peer, me.index() * 50 + i));
    }
  }
  Values out(Sum(receive));
  EXPECT_OK(Over(me.backend().Alltoall(me.Next(), BytesOf(in), InBytes(send), BytesOf(out),
                                       InBytes(receive))));
  EXPECT_TRUE(out == expected) << "alltoall";
}

inline void CheckGatherAndScatter(Member& me, int64_t base) {
  const std::vector<int64_t> parts = UnevenParts(base, me.size());
  for (int root = 0; root < me.size(); ++root) {
    const bool is_root = me.index() == root;
    Values mine = Contribution(me.index(), parts[static_cast<size_t>(me.index())]);
    Values all(is_root ? Sum(parts) : 0);
    EXPECT_OK(
        Over(me.backend().Gather(me.Next(), BytesOf(mine), BytesOf(all), InBytes(parts), root)));
    if (is_root) {
      EXPECT_TRUE(all == Concatenation(parts)) << "gather of " << base;
    }

    Values received(mine.size());
    EXPECT_OK(Over(
        me.backend().Scatter(me.Next(), BytesOf(all), InBytes(parts), BytesOf(received), root)));
    EXPECT_TRUE(received == mine) << "scatter of " << base;
  }
}

inline void CheckSendAndRecv(Member& me) {
  for (int from = 0; from < me.size(); ++from) {
    const int to = (from + 1) % me.size();
    const LaneContext lane = me.Next();
    if (to == from) continue;
    Values values = Contribution(me.index(), 77);
    if (me.index() == from) {
      EXPECT_OK(Over(me.backend().Send(lane, BytesOf(values), to)));
    }
    if (me.index() != to) continue;
    EXPECT_OK(Over(me.backend().Recv(lane, BytesOf(values), from)));
    EXPECT_TRUE(values == Contribution(from, 77)) << "recv";
  }
}

inline void CheckEverything(Member& me) {
  constexpr int64_t kSeveralChunks = kIsSanitized ? 30'001 : 70'001;
  EXPECT_OK(Over(me.backend().Barrier(me.Next())));
  for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{1000}, kSeveralChunks}) {
    if (CurrentTestFailed()) return;  // what follows a collective that hangs hangs as well
    CheckAllreduceAndReduce(me, count);
    CheckBroadcast(me, count);
    CheckAllgather(me, count);
    CheckReduceScatter(me, count, false);
    CheckReduceScatter(me, count, true);
    CheckGatherAndScatter(me, count);
  }
  CheckAlltoall(me);
  CheckSendAndRecv(me);
  EXPECT_OK(Over(me.backend().Barrier(me.Next())));
}

inline Group GroupOf(GroupId id, std::vector<int> ranks, int rank) {
  Group group{id, std::move(ranks), -1};
  group.my_index = group.IndexOf(rank);
  return group;
}
inline Group WorldOf(int size, int rank) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return GroupOf(kWorld, std::move(ranks), rank);
}

// No rank leaves a barrier before the last has come.
inline void CheckBarrierHoldsBack(const BackendMaker& make) {
  constexpr int kSize = 5;
  const auto backends = make(kSize);
  std::atomic<int> arrived{0};
  RunRanks(kSize, [&](int rank) {
    Member me(*backends[static_cast<size_t>(rank)], WorldOf(kSize, rank), 0);
    for (int round = 1; round <= Repetitions(50); ++round) {
      arrived.fetch_add(1);
      EXPECT_OK(Over(me.backend().Barrier(me.Next())));
      EXPECT_GE(arrived.load(), round * kSize);
      EXPECT_OK(Over(me.backend().Barrier(me.Next())));
    }
  });
}

inline void CheckAbort(const BackendMaker& make) {
  const auto backends = make(2);
  RunRanks(2, [&](int rank) {
    Backend& backend = *backends[static_cast<size_t>(rank)];
    if (rank == 1) {
      for (const auto& each : backends) each->Abort(Aborted("first"));
      backend.Abort(Aborted("second"));
    }
    Member me(backend, WorldOf(2, rank), 0);
    Values values(10);
    // Rank 0 may be waiting or not have begun; rank 1 has been aborted.
    EXPECT_EQ(Over(backend.Allreduce(me.Next(), ViewOf(values), ReduceOp::kSum)).message(),
              "first");
    Member alone(backend, GroupOf(1, {rank}, rank), 0);
    EXPECT_EQ(Over(backend.Barrier(alone.Next())).message(), "first");
  });
}

inline int RegisterBackendConformance(const std::string& suite, BackendMaker make) {
  for (int size : {1, 2, 3, 5}) {
    Register(suite, "every_collective_is_right_on_" + std::to_string(size) + "_ranks",
             [make, size] {
               const auto backends = make(size);
               RunRanks(size, [&](int rank) {
                 Member me(*backends[static_cast<size_t>(rank)], WorldOf(size, rank), 0);
                 CheckEverything(me);
               });
             });
  }
  Register(suite, "groups_and_lanes_do_not_disturb_each_other", [make] {
    constexpr int kSize = 4;
    const auto backends = make(kSize);
    const std::vector<std::vector<int>> groups = {{0, 1, 2, 3}, {0, 2}, {1, 3}, {1, 2, 3}, {2}};
    RunRanks(kSize, [&](int rank) {
      for (int id = 0; id < static_cast<int>(groups.size()); ++id) {
        EXPECT_OK(backends[static_cast<size_t>(rank)]->AddGroup(
            GroupOf(id, groups[static_cast<size_t>(id)], rank)));
      }
    });
    // One thread per rank and group: group g runs on lane g.
    RunRanks(kSize * static_cast<int>(groups.size()), [&](int thread) {
      const int rank = thread % kSize;
      const int lane = thread / kSize;
      Group group = GroupOf(lane, groups[static_cast<size_t>(lane)], rank);
      if (!group.is_member()) return;
      Member me(*backends[static_cast<size_t>(rank)], std::move(group), lane);
      CheckEverything(me);
    });
  });
  Register(suite, "a_barrier_holds_back_until_the_last_has_come",
           [make] { CheckBarrierHoldsBack(make); });
  Register(suite, "an_abort_fails_present_and_future_calls_with_the_first_reason",
           [make] { CheckAbort(make); });
  return 0;
}

}  // namespace rabit::testing
