// Every allreduce algorithm over the real transports, all ranks in one process.
#include <utility>
#include <vector>

#include "testing/collective_conformance.h"
#include "testing/memory_store.h"
#include "testing/tcp_job.h"
#include "testing/test.h"
#include "transport/shm/shm_testing.h"

namespace rabit {
namespace {

using testing::TransportSet;

// Connecting costs more than what is run: one set of transports serves many cases.
class Borrowed final : public Transport {
 public:
  explicit Borrowed(Transport& inner) : inner_(inner) {}
  std::string_view name() const override { return inner_.name(); }
  std::string_view name_for(int peer) const override { return inner_.name_for(peer); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Operation Send(int peer, Tag tag, ConstBytes buffer) override {
    return inner_.Send(peer, tag, buffer);
  }
  Operation Recv(int peer, Tag tag, Bytes buffer) override {
    return inner_.Recv(peer, tag, buffer);
  }
  Operation RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                       PieceReducer reducer) override {
    return inner_.RecvReduce(peer, tag, buffer, scratch, reducer);
  }
  void Abort(Status why) override { inner_.Abort(std::move(why)); }
  TransportCounters counters() const override { return inner_.counters(); }
  int64_t cached_message_bytes(int peer) const override {
    return inner_.cached_message_bytes(peer);
  }

 private:
  Transport& inner_;
};

testing::TransportMaker Lending(const TransportSet& set) {
  return [&set](int) {
    std::vector<std::unique_ptr<Transport>> lent;
    for (const auto& transport : set.ranks) lent.push_back(std::make_unique<Borrowed>(*transport));
    return lent;
  };
}

// Waits sleep among an odd number of ranks; among an even one they look again first, and give the
// core away meanwhile if the ranks outnumber the cores.
TransportSet MakeShm(int size) {
  TransportSet set;
  set.ranks.resize(static_cast<size_t>(size));
  testing::MemoryStore store;
  testing::RunRanks(size, [&](int rank) {
    const int spin_us = size % 2 == 0 ? -1 : 0;
    auto transport = testing::ConnectOneHost(store, rank, size, {.spin_us = spin_us});
    EXPECT_OK(transport);
    if (transport.ok()) set.ranks[static_cast<size_t>(rank)] = std::move(*transport);
  });
  return set;
}

// Transports carry bytes: every dtype with one op and every op with two dtypes meet every
// algorithm, message size and number of ranks here; the rest of the product is the inproc suite's.
void CheckOver(const TransportSet& set, int size) {
  ASSERT_EQ(set.ranks.size(), static_cast<size_t>(size));
  const testing::TransportMaker lend = Lending(set);
  for (const DType dtype : testing::ConformanceDTypes()) {
    if (!Supports(dtype, ReduceOp::kSum)) continue;
    testing::CheckAllreduce(lend, size, dtype, ReduceOp::kSum, {0, size - 1, size + 1, 1000});
  }
  for (const ReduceOp op : testing::ConformanceOps()) {
    for (const DType dtype : {DType::kFloat32, DType::kInt32}) {
      if (Supports(dtype, op)) testing::CheckAllreduce(lend, size, dtype, op, {1000});
    }
  }
  testing::CheckAllreduce(lend, size, DType::kFloat32, ReduceOp::kSum, {65'537, 300'007});
}

TEST(AllreduceOverTcp, every_algorithm_is_right_on_every_number_of_ranks) {
  for (const int size : testing::ConformanceSizes()) {
    CheckOver(testing::MakeTcp(size, [](int) { return TcpOptions{}; }), size);
    if (testing::CurrentTestFailed()) return;
  }
}

TEST(AllreduceOverTcp, every_algorithm_is_right_over_striped_connections) {
  TcpOptions options;
  options.connections_per_stream = 2;
  options.stripe_bytes_min = 4096;
  CheckOver(testing::MakeTcp(3, [&](int) { return options; }), 3);
}

TEST(AllreduceOverShm, every_algorithm_is_right_on_every_number_of_ranks) {
  for (const int size : testing::ConformanceSizes()) {
    CheckOver(MakeShm(size), size);
    if (testing::CurrentTestFailed()) return;
  }
}

// In messages of 64 KiB, which are reduced out of the ring; larger ones are copied from process to
// process.
TEST(AllreduceOverShm, what_fits_into_a_cache_goes_in_small_messages) {
  const TransportSet set = MakeShm(2);
  ASSERT_EQ(set.ranks.size(), size_t{2});
  uint64_t sequence = 0;
  const auto messages_for = [&](std::string_view name, int64_t count) {
    const uint64_t before = set.ranks[0]->counters().messages_sent;
    ++sequence;
    testing::RunRanks(2, [&](int rank) {
      std::vector<float> values(static_cast<size_t>(count), static_cast<float>(rank + 1));
      Scratch scratch;
      EXPECT_OK(FindAllreduceAlgorithm(name)->run(
          {*set.ranks[static_cast<size_t>(rank)], MakeTag(0, sequence), testing::TestDeadline(),
           scratch},
          {{values.data(), count, DType::kFloat32, {}}, ReduceOp::kSum, {}}));
      EXPECT_TRUE(values == std::vector<float>(values.size(), 3.0f)) << name;
    });
    return set.ranks[0]->counters().messages_sent - before;
  };

  // Half of the tensor each way, twice.
  EXPECT_EQ(messages_for("halving_doubling", 1 << 16), uint64_t{2 + 2});
  EXPECT_EQ(messages_for("halving_doubling", 1 << 18), uint64_t{8 + 8});
  EXPECT_EQ(messages_for("halving_doubling", 1 << 19), uint64_t{4 + 1});  // 1 MiB each
  // Everything once.
  EXPECT_EQ(messages_for("recursive_doubling", 1 << 17), uint64_t{8});
  EXPECT_EQ(messages_for("direct", 1 << 19), uint64_t{16 + 16});
  EXPECT_EQ(messages_for("direct", 1 << 20), uint64_t{8 + 8});
}

}  // namespace
}  // namespace rabit
