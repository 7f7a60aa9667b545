// What every Codec must do.  RABIT_CODEC_SUITE(Name, "spec") registers the cases for one
// specification, RegisterCodecSuite for another exchange too.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "codec/codec_table.h"
#include "codec/random.h"
#include "testing/local_exchange.h"
#include "testing/noise.h"
#include "testing/test.h"

namespace rabit::testing {

inline constexpr int64_t kCodecCounts[] = {0, 1, 2, 7, 8, 63, 513, 4099, 20000};

inline Floats CodecInput(int64_t count, int rank, uint32_t seed = 1) {
  return Noise(count, seed * 1000 + static_cast<uint32_t>(rank));
}

inline TensorView ViewOf(Floats& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DType::kFloat32, {}};
}

inline CodecPart PartOf(Floats& in, Floats& out, uint64_t key = 77) {
  CodecPart part;
  part.in = ViewOf(in);
  part.out = ViewOf(out);
  part.residual = part.sum_residual = {nullptr, part.in.count, DType::kFloat32, {}};
  part.key = key;
  return part;
}

// A part of `whole`; `first` is a multiple of the codec's block.
inline CodecPart Slice(const CodecPart& whole, int64_t first, int64_t count) {
  CodecPart part = whole;
  for (TensorView* view : {&part.in, &part.out, &part.residual, &part.sum_residual}) {
    if (view->data != nullptr) view->data = static_cast<float*>(view->data) + first;
    view->count = count;
  }
  part.offset = first;
  return part;
}

// Calls the body on one thread for each of so many ranks.
using ExchangeRunner = std::function<void(int size, const std::function<void(Exchange&)>& body)>;

// What each of `size` ranks gets for CodecInput.
inline std::vector<Floats> ReduceAll(const Codec& codec, int size, int64_t count,
                                     const ExchangeRunner& run = RunExchange) {
  std::vector<Floats> results(static_cast<size_t>(size));
  run(size, [&](Exchange& wire) {
    Floats in = CodecInput(count, wire.rank());
    Floats& out = results[static_cast<size_t>(wire.rank())];
    out.assign(in.size(), 99.0f);
    const CodecPart part = PartOf(in, out);
    EXPECT_OK(codec.Reduce(wire, {&part, 1}));
  });
  return results;
}

inline bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline void CodecGivesAllRanksTheSameBits(const Codec& codec, const ExchangeRunner& run) {
  for (const int size : {1, 2, 3, 4}) {
    for (const int64_t count : kCodecCounts) {
      const std::vector<Floats> results = ReduceAll(codec, size, count, run);
      for (const Floats& each : results)
        EXPECT_TRUE(SameBits(each, results[0])) << size << " ranks, " << count;
      EXPECT_TRUE(SameBits(ReduceAll(codec, size, count, run)[0], results[0])) << "the second time";
    }
  }
}

// The parts of one bucket come from several tensors, cut anywhere that is allowed.
inline void CodecDoesNotSeeCutsAndNeighbours(const Codec& codec, const ExchangeRunner& run) {
  const int64_t count = 3 * codec.block() + codec.block() / 2 + 1;
  const std::vector<Floats> whole = ReduceAll(codec, 3, count, run);
  run(3, [&](Exchange& wire) {
    Floats in = CodecInput(count, wire.rank());
    Floats other = CodecInput(5 * codec.block() + 3, wire.rank(), 9);
    Floats out(in.size()), other_out(other.size());
    const CodecPart part = PartOf(in, out);
    const CodecPart neighbour = PartOf(other, other_out, 5);
    const int64_t cut = 2 * codec.block();
    const CodecPart bucket[] = {Slice(part, cut, count - cut), neighbour, Slice(part, 0, cut)};
    EXPECT_OK(codec.Reduce(wire, bucket));
    EXPECT_TRUE(SameBits(out, whole[0])) << "rank " << wire.rank();
  });
}

inline void CodecTakesARankThatHasJoinedForZeros(const Codec& codec, const ExchangeRunner& run) {
  std::vector<Floats> with_zeros(3), without(3);
  for (const bool has_joined : {false, true}) {
    run(3, [&](Exchange& wire) {
      Floats in = CodecInput(1000, wire.rank());
      if (wire.rank() == 1) std::fill(in.begin(), in.end(), 0.0f);
      Floats& out = (has_joined ? without : with_zeros)[static_cast<size_t>(wire.rank())];
      out.resize(in.size());
      CodecPart part = PartOf(in, out);
      if (has_joined && wire.rank() == 1) part.in.data = part.out.data = nullptr;
      EXPECT_OK(codec.Reduce(wire, {&part, 1}));
    });
  }
  EXPECT_TRUE(SameBits(with_zeros[0], without[0]) && SameBits(with_zeros[2], without[2]));
}

inline void CodecKeepsZerosAndWorksInPlace(const Codec& codec, const ExchangeRunner& run) {
  run(2, [&](Exchange& wire) {
    Floats zeros(700, 0.0f);
    const CodecPart part = PartOf(zeros, zeros);
    EXPECT_OK(codec.Reduce(wire, {&part, 1}));
    for (const float value : zeros) EXPECT_EQ(value, 0.0f);

    Floats values = CodecInput(700, wire.rank());
    Floats apart(700);
    const CodecPart to_another = PartOf(values, apart);
    EXPECT_OK(codec.Reduce(wire, {&to_another, 1}));
    const CodecPart in_place = PartOf(values, values);
    EXPECT_OK(codec.Reduce(wire, {&in_place, 1}));
    EXPECT_TRUE(SameBits(values, apart));
  });
}

// A loss scaler must see it, and the residual must survive it.
inline void CodecLetsValuesThatAreNotFiniteThrough(const Codec& codec, const ExchangeRunner& run) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    run(2, [&](Exchange& wire) {
      Floats in = CodecInput(std::max<int64_t>(2 * codec.block(), 8), wire.rank());
      if (wire.rank() == 1) in[3] = bad;
      Floats out(in.size()), residual(in.size(), 0.25f), of_sums(in.size(), 0.5f);
      CodecPart part = PartOf(in, out);
      if (codec.residuals() > 0) part.residual = ViewOf(residual);
      if (codec.residuals() > 1) part.sum_residual = ViewOf(of_sums);
      EXPECT_OK(codec.Reduce(wire, {&part, 1}));
      EXPECT_FALSE(std::isfinite(out[3]));
      for (const float value : residual) EXPECT_TRUE(std::isfinite(value));
      for (const float value : of_sums) EXPECT_TRUE(std::isfinite(value));
      EXPECT_EQ(of_sums[0], 0.5f);  // a sum that is lost leaves nothing
      if (wire.rank() == 1) {
        EXPECT_EQ(residual[0], 0.25f);
      }
      for (size_t i = static_cast<size_t>(codec.block()); i < out.size() && codec.block() > 1; ++i)
        EXPECT_TRUE(std::isfinite(out[i])) << i;
    });
  }
}

// Over many steps what has arrived is what was sent, but for what is still held back.
inline void CodecLosesNothingWithAResidual(const Codec& codec, const ExchangeRunner& run) {
  if (codec.residuals() == 0) SKIP_TEST("the codec takes no residual");
  if (codec.spec().starts_with("chance")) SKIP_TEST("it loses more than it is given");
  run(1, [&](Exchange& wire) {
    constexpr int kSteps = 300;
    const Floats gradient = CodecInput(600, 0);
    Floats in = gradient, residual(in.size(), 0.0f), out(in.size());
    std::vector<double> arrived(in.size(), 0.0);
    for (int step = 0; step < kSteps; ++step) {
      CodecPart part = PartOf(in, out, KeyOfTensor(static_cast<uint64_t>(step), "t"));
      part.residual = ViewOf(residual);
      EXPECT_OK(codec.Reduce(wire, {&part, 1}));
      for (size_t i = 0; i < out.size(); ++i) arrived[i] += out[i];
    }
    double error = 0, norm = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      const double mean = (arrived[i] + residual[i]) / kSteps;
      error += (mean - gradient[i]) * (mean - gradient[i]);
      norm += static_cast<double>(gradient[i]) * gradient[i];
    }
    EXPECT_LT(std::sqrt(error / norm), 0.05) << codec.spec();
  });
}

inline int RegisterCodecSuite(const std::string& suite, const std::string& spec,
                              const ExchangeRunner& run = RunExchange) {
  const auto add = [&](const char* name, void (*check)(const Codec&, const ExchangeRunner&)) {
    Register(suite, name, [spec, check, run] {
      auto codec = MakeCodec(spec);
      ASSERT_OK(codec);
      check(**codec, run);
    });
  };
  add("gives_all_ranks_the_same_bits", &CodecGivesAllRanksTheSameBits);
  add("does_not_see_cuts_and_neighbours", &CodecDoesNotSeeCutsAndNeighbours);
  add("takes_a_rank_that_has_joined_for_zeros", &CodecTakesARankThatHasJoinedForZeros);
  add("keeps_zeros_and_works_in_place", &CodecKeepsZerosAndWorksInPlace);
  add("lets_values_that_are_not_finite_through", &CodecLetsValuesThatAreNotFiniteThrough);
  add("loses_nothing_with_a_residual", &CodecLosesNothingWithAResidual);
  return 0;
}

#define RABIT_CODEC_SUITE(suite, spec)                          \
  [[maybe_unused]] static const int rabit_codec_suite_##suite = \
      ::rabit::testing::RegisterCodecSuite(#suite, spec)

}  // namespace rabit::testing
