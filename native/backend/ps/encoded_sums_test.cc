// Codecs whose encodings servers add up.
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/ps/link_shares.h"
#include "backend/ps/ps_backend.h"
#include "backend/ps/ps_wire.h"
#include "codec/codec_adder.h"
#include "testing/codec_conformance.h"
#include "testing/link_hosts.h"
#include "testing/run_ranks.h"
#include "testing/sanitizer.h"
#include "testing/served_exchange.h"
#include "testing/server_threads.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::Floats;
using testing::LocalHub;
using testing::SameBits;
using testing::ServedExchange;

// Workers and servers as threads, of which the first are the workers.
class CodedJob {
 public:
  CodedJob(const Places& places, const EncodingAdder& adder)
      : hub_(places.workers), fabric_(static_cast<int>(places.host_of.size())) {
    const int workers = places.workers, servers = places.servers();
    if (workers > 1) {
      servers_ =
          std::make_unique<testing::ServerThreads>(fabric_, workers, servers, 1, false, &adder);
    }
    for (int rank = 0; rank < workers; ++rank) {
      auto endpoints = fabric_.Connect(rank);
      endpoints_.push_back(endpoints.get());
      backends_.push_back(std::make_unique<PsBackend>(std::move(endpoints), places,
                                                      testing::NodeNames(servers), PsStreams(), 1,
                                                      MakeCodecAdder()));
      members_.emplace_back(*backends_.back(), testing::WorldOf(workers, rank), 0);
    }
  }
  ~CodedJob() { backends_.clear(); }  // before the servers

  void Run(const std::function<void(ServedExchange&)>& body) {
    testing::RunRanks(hub_.size(), [&](int rank) {
      ServedExchange exchange(hub_, members_[static_cast<size_t>(rank)]);
      body(exchange);
    });
  }
  // Each way, of the worker or the server of that number.
  std::pair<int64_t, int64_t> BytesOver(int process) const {
    if (process >= hub_.size()) {
      const auto summed = static_cast<int64_t>((*servers_)[process - hub_.size()].bytes_summed());
      return {summed, summed};
    }
    const TransportCounters counters = endpoints_[static_cast<size_t>(process)]->counters();
    return {static_cast<int64_t>(counters.bytes_sent),
            static_cast<int64_t>(counters.bytes_received)};
  }

 private:
  LocalHub hub_;
  testing::InprocFabric fabric_;
  std::unique_ptr<testing::ServerThreads> servers_;
  std::vector<const Transport*> endpoints_;
  std::vector<std::unique_ptr<PsBackend>> backends_;
  std::vector<testing::Member> members_;
};

testing::ExchangeRunner Through(int servers) {
  return [servers](int size, const std::function<void(Exchange&)>& body) {
    const auto adder = MakeCodecAdder();
    CodedJob job(Places::Alike(size, servers), *adder);
    job.Run(body);
  };
}

// What servers do not add up is reduced among the ranks, and passes the same cases.
[[maybe_unused]] const bool all_codecs_are_served = [] {
  const auto add = [](std::string_view name, std::string_view spec) {
    testing::RegisterCodecSuite("PsServed_" + std::string(name), std::string(spec), Through(1));
  };
  for (const CodecRow& row : CodecTable()) add(row.name, row.example);
  add("table_of_levels", "levels:bits=3,block=64,levels=2a005500,norm=l2");
  add("sign_in_two_phases", "sign:block=64,phases=2");
  return true;
}();

// Quicker than CodecInput: small values, and some large ones.
Floats SpreadValues(int64_t count, int rank, uint64_t step) {
  Floats values(static_cast<size_t>(count));
  uint64_t state = step * 64 + static_cast<uint64_t>(rank) + 1;
  for (float& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<int64_t>(state) >> 40) * (state & 0x30 ? 1e-7f : 1e-5f);
  }
  return values;
}

struct Reduced {
  std::vector<Floats> outs, residuals;
  int64_t bytes_served = 0;
};

// Three tensors in one bucket, large, odd and small ones, with residuals, in two steps.
std::vector<Reduced> ReduceBucket(const std::string& spec, int size,
                                  const testing::ExchangeRunner& run) {
  const auto codec = MakeCodec(spec);
  EXPECT_OK(codec);
  std::vector<Reduced> reduced(static_cast<size_t>(size));
  run(size, [&](Exchange& wire) {
    Reduced& mine = reduced[static_cast<size_t>(wire.rank())];
    mine.residuals = {Floats(150'001, 0.01f), Floats(77, 0.0f), Floats(5'000, -0.01f)};
    for (uint32_t step = 0; step < 2; ++step) {
      std::vector<Floats> ins;
      std::vector<CodecPart> parts;
      mine.outs.clear();
      for (uint32_t i = 0; i < 3; ++i) {
        const auto count = static_cast<int64_t>(mine.residuals[i].size());
        ins.push_back(SpreadValues(count, wire.rank(), 10 * step + i));
        mine.outs.emplace_back(mine.residuals[i].size());
      }
      for (size_t i = 0; i < 3; ++i) {
        parts.push_back(testing::PartOf(ins[i], mine.outs[i], 100 * step + i));
        parts.back().residual = testing::ViewOf(mine.residuals[i]);
      }
      EXPECT_OK((*codec)->Reduce(wire, parts));
    }
    const auto* const served = dynamic_cast<const ServedExchange*>(&wire);
    mine.bytes_served = served == nullptr ? 0 : served->bytes_served();
  });
  return reduced;
}

TEST(PsEncodedSums, have_the_bits_of_the_codecs_own_exchange) {
  for (const char* const spec :
       {"levels:bits=4,block=512", "levels:bits=8,block=2048,norm=l2", "minmax8:block=64"}) {
    for (const int size : testing::kIsSanitized ? std::vector{3} : std::vector{2, 5}) {
      const auto own = ReduceBucket(spec, size, testing::RunExchange);
      for (const int servers : {0, 3}) {
        const auto served = ReduceBucket(spec, size, Through(servers));
        for (size_t rank = 0; rank < own.size(); ++rank) {
          EXPECT_GT(served[rank].bytes_served, 150'000);
          for (size_t i = 0; i < 3; ++i) {
            EXPECT_TRUE(SameBits(served[rank].outs[i], own[0].outs[i]))
                << spec << ", " << size << " ranks, " << servers << " servers, tensor " << i;
            EXPECT_TRUE(SameBits(served[rank].residuals[i], own[rank].residuals[i])) << spec;
          }
        }
      }
    }
  }
}

TEST(PsEncodedSums, blocks_that_are_too_large_for_a_chunk_stay_among_the_ranks) {
  constexpr int64_t kLargest = 65'600;  // levels:bits=8,block=65536
  for (const int size : {2, 65}) {      // chunks of 96 KiB, and of 63
    testing::InprocFabric fabric(size + 1);
    PsBackend backend(fabric.Connect(0), Places::Alike(size, 1), testing::NodeNames(1), PsStreams(),
                      1, MakeCodecAdder());
    testing::Member member(backend, testing::WorldOf(size, 0), 0);

    const auto slices = backend.DivideEncoded(member.Next(), 1'000'000, kLargest);

    EXPECT_EQ(slices.empty(), size == 65);
    for (const EncodedSlice& slice : slices) {
      EXPECT_GE(slice.chunk_bytes, kLargest);
      EXPECT_LE(slice.chunk_bytes, PsChunkBytesMax(size));
    }
  }
}

// As tensors that are not compressed (PsBackend.every_link_is_done_when_the_optimum_says).
TEST(PsEncodedSums, every_link_is_done_when_the_optimum_says) {
  constexpr int64_t kCount = 2'000'000;
  const std::string spec = "levels:bits=4,block=512";
  const double encoded = kCount / 512.0 * (256 + 4);
  const auto adder = MakeCodecAdder();
  const std::vector<std::pair<int, int>> jobs = {{4, 1}, {2, 1}, {4, 0}, {4, 4}};
  for (const auto& [workers, servers] : std::span(jobs).first(testing::Repetitions(4))) {
    for (const bool is_equal : {true, false}) {
      const testing::LinkHosts hosts(workers, servers, is_equal);
      CodedJob job(hosts.places, *adder);

      job.Run([&](Exchange& wire) {
        const auto codec = MakeCodec(spec);
        Floats values(kCount, 1.0f);
        const CodecPart part = testing::PartOf(values, values);
        EXPECT_OK((*codec)->Reduce(wire, {&part, 1}));
        EXPECT_EQ(values.back(), static_cast<float>(wire.size()));
      });

      for (int i = 0; i < workers + servers; ++i) {
        const double wanted = hosts.Traffic(i);
        const auto [out, in] = job.BytesOver(i);
        for (const int64_t each : {out, in}) {
          EXPECT_LE(std::abs(static_cast<double>(each) / encoded - wanted), 0.05 * wanted)
              << workers << " workers, " << servers << " servers, link " << i << ": "
              << static_cast<double>(each) / encoded << " for " << wanted;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rabit
