// Codecs that keep what encoding the sums leaves out.
#include <memory>
#include <string>
#include <vector>

#include "testing/codec_conformance.h"

namespace rabit::testing {
namespace {

constexpr int64_t kCount = 1000;  // blocks of 64, the last one short
constexpr int kRanks = 3;
constexpr int kSteps = 5;

struct Kept {
  Floats residual = Floats(kCount, 0.0f), of_sums = Floats(kCount, 0.0f), out = Floats(kCount);
  std::vector<Floats> outs;
};

// `cut`: the tensor travels in two parts, the later one first, with a neighbour between them.
std::vector<Kept> Train(const std::string& spec, int64_t cut) {
  auto codec = MakeCodec(spec);
  EXPECT_OK(codec);
  std::vector<Kept> kept(kRanks);
  RunExchange(kRanks, [&](Exchange& wire) {
    Kept& mine = kept[static_cast<size_t>(wire.rank())];
    for (uint32_t step = 0; step < kSteps; ++step) {
      Floats in = CodecInput(kCount, wire.rank(), 1 + step);
      Floats other = CodecInput(200, wire.rank(), 90 + step);
      CodecPart whole = PartOf(in, mine.out, KeyOfTensor(step, "t"));
      whole.residual = ViewOf(mine.residual);
      whole.sum_residual = ViewOf(mine.of_sums);
      const CodecPart neighbour = PartOf(other, other, 5);
      std::vector<CodecPart> bucket = {whole};
      if (cut > 0) bucket = {Slice(whole, cut, kCount - cut), neighbour, Slice(whole, 0, cut)};
      EXPECT_OK((*codec)->Reduce(wire, bucket));
      mine.outs.push_back(mine.out);
    }
  });
  return kept;
}

TEST(SumFeedback, what_sums_lose_is_sent_later) {
  const std::vector<Kept> kept = Train("sign:block=64,phases=2", 0);
  std::vector<Floats> inputs;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (uint32_t step = 0; step < kSteps; ++step)
      inputs.push_back(CodecInput(kCount, rank, 1 + step));
  }
  double lost = 0;
  for (size_t i = 0; i < kCount; ++i) {
    double left = 0;
    for (const Floats& out : kept[0].outs) left += out[i];
    for (const Floats& in : inputs) left -= in[i];
    for (int rank = 0; rank < kRanks; ++rank) {
      const Kept& each = kept[static_cast<size_t>(rank)];
      left += each.residual[i];
      left += each.of_sums[i];
      lost += std::abs(each.of_sums[i]);
    }
    EXPECT_LT(std::abs(left), 1e-4) << i;
  }
  EXPECT_GT(lost, 1.0);
}

TEST(SumFeedback, belongs_to_the_rank_that_adds_a_block_up) {
  const std::vector<Kept> kept = Train("sign:block=64,phases=2", 0);
  for (size_t i = 0; i < kCount; ++i) {
    for (size_t rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(kept[rank].of_sums[i] != 0, i / 64 % kRanks == rank) << i;
  }
}

TEST(SumFeedback, does_not_see_cuts_and_neighbours) {
  const std::vector<Kept> whole = Train("sign:block=64,phases=2", 0);
  for (const int64_t cut : {64, 5 * 64}) {
    const std::vector<Kept> parts = Train("sign:block=64,phases=2", cut);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      for (size_t step = 0; step < kSteps; ++step)
        EXPECT_TRUE(SameBits(parts[rank].outs[step], whole[0].outs[step])) << cut;
      EXPECT_TRUE(SameBits(parts[rank].of_sums, whole[rank].of_sums)) << cut;
      EXPECT_TRUE(SameBits(parts[rank].residual, whole[rank].residual)) << cut;
    }
  }
}

}  // namespace
}  // namespace rabit::testing
