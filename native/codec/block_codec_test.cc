// The block codecs against scalar oracles, bit by bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "codec/codec_kernels.h"
#include "codec/codec_table.h"
#include "codec/random.h"
#include "testing/codec_conformance.h"
#include "testing/sanitizer.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::CodecInput;
using testing::Floats;
using testing::PartOf;
using testing::ReduceAll;
using testing::Repetitions;
using testing::RunExchange;
using testing::SameBits;
using testing::SimulatedRounds;
using testing::ViewOf;

// What a block becomes by being encoded and decoded.
using RoundTrip = std::function<Floats(const Floats& block, uint64_t key)>;

constexpr uint64_t kForAllRanks = ~uint64_t{0};
constexpr uint64_t kKey = 77;  // of testing::PartOf

float SumInLanes(const Floats& block, const std::function<float(float)>& of) {
  std::vector<float> lanes(16, 0.0f);
  for (size_t i = 0; i < block.size(); ++i) lanes[i % 16] += of(block[i]);
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

float Largest(const Floats& block) {
  float largest = 0;
  for (const float value : block) largest = std::max(largest, std::abs(value));
  return largest;
}

RoundTrip Levels(int bits, bool is_uniform, bool is_l2) {
  return [=](const Floats& block, uint64_t key) {
    const int top = (1 << (bits - 1)) - 1;
    const float scale =
        is_l2 ? std::sqrt(SumInLanes(block, [](float x) { return x * x; })) : Largest(block);
    const float inverse = (is_uniform ? static_cast<float>(top) : 1.0f) / scale;
    Floats values;
    for (size_t i = 0; i < block.size(); ++i) {
      const float place = std::abs(block[i]) * inverse;
      const uint32_t random = RandomBits(key, static_cast<uint32_t>(i));
      const float uniform = std::ldexp(static_cast<float>(random >> 8), -24);
      float value = 0;
      if (is_uniform) {
        const float below = std::floor(place);
        const float level =
            std::min(below + (uniform < place - below ? 1 : 0), static_cast<float>(top));
        value = level * (scale / static_cast<float>(top));
      } else if (place < std::ldexp(1.0f, 1 - top)) {
        value = uniform < std::ldexp(place, top - 1) ? std::ldexp(1.0f, 1 - top) * scale : 0.0f;
      } else {
        int exponent = 0;
        const float mantissa = std::frexp(place, &exponent) * 2.0f - 1.0f;  // 0 up to 1
        const float carry = mantissa + std::ldexp(static_cast<float>(random >> 9), -23);
        value = std::min(std::ldexp(1.0f, exponent - 1 + (carry >= 1.0f ? 1 : 0)), 1.0f) * scale;
      }
      values.push_back(std::signbit(block[i]) ? -value : value);
    }
    return values;
  };
}

RoundTrip LevelsOfTable(const Floats& table) {
  return [=](const Floats& block, uint64_t key) {
    const float scale = Largest(block);
    Floats values;
    for (size_t i = 0; i < block.size(); ++i) {
      const float place = std::abs(block[i]) * (1.0f / scale);
      const auto above = std::upper_bound(table.begin() + 1, table.end() - 1, place);
      const float low = *(above - 1);
      const float uniform =
          std::ldexp(static_cast<float>(RandomBits(key, static_cast<uint32_t>(i)) >> 8), -24);
      const float level = uniform * (*above - low) < place - low ? *above : low;
      values.push_back(std::signbit(block[i]) ? -level * scale : level * scale);
    }
    return values;
  };
}

RoundTrip Float8() {
  return [](const Floats& block, uint64_t key) {
    const float scale = Largest(block);
    Floats values;
    for (size_t i = 0; i < block.size(); ++i) {
      const float place = std::abs(block[i]) * (448.0f / scale);
      const uint32_t random = RandomBits(key, static_cast<uint32_t>(i));
      const int exponent = std::max(std::ilogb(place), -6);
      const float steps = std::ldexp(place, 3 - exponent);  // of the mantissa
      const float part = place < std::ldexp(1.0f, -6)
                             ? std::ldexp(static_cast<float>(random >> 8), -24)
                             : 1.0f - std::ldexp(static_cast<float>((random >> 12) + 1), -20);
      const float below = std::floor(steps);
      const bool is_up = place < std::ldexp(1.0f, -6) ? part < steps - below : steps - below > part;
      const float level = std::min(std::ldexp(below + (is_up ? 1 : 0), exponent - 3), 448.0f);
      const float value = level * (scale / 448.0f);
      values.push_back(std::signbit(block[i]) ? -value : value);
    }
    return values;
  };
}

RoundTrip Natural() {
  return [](const Floats& block, uint64_t key) {
    Floats values;
    for (size_t i = 0; i < block.size(); ++i) {
      const uint32_t random = RandomBits(key, static_cast<uint32_t>(i)) >> 9;
      int exponent = 0;
      const float mantissa = std::frexp(std::abs(block[i]), &exponent) * 2.0f - 1.0f;  // 0 up to 1
      const bool is_up = mantissa + std::ldexp(static_cast<float>(random), -23) >= 1.0f;
      const float value = block[i] == 0 ? 0.0f : std::ldexp(1.0f, exponent - 1 + (is_up ? 1 : 0));
      values.push_back(std::signbit(block[i]) ? -value : value);
    }
    return values;
  };
}

RoundTrip MinMax() {
  return [](const Floats& block, uint64_t) {
    const float least = *std::min_element(block.begin(), block.end());
    const float range = *std::max_element(block.begin(), block.end()) - least;
    Floats values;
    for (const float value : block) {
      const float code =
          range > 0 ? std::min(std::floor((value - least) * (255.0f / range) + 0.5f), 255.0f) : 0;
      values.push_back(code * (range / 255.0f) + least);
    }
    return values;
  };
}

RoundTrip Sign() {
  return [](const Floats& block, uint64_t) {
    const float scale =
        SumInLanes(block, [](float x) { return std::abs(x); }) / static_cast<float>(block.size());
    Floats values;
    for (const float value : block) values.push_back(std::signbit(value) ? -scale : scale);
    return values;
  };
}

RoundTrip TwoMeans() {
  return [](const Floats& block, uint64_t) {
    float means[2];
    for (const bool is_negative : {false, true}) {
      const auto is_of_side = [=](float x) { return std::signbit(x) == is_negative; };
      const auto size = std::count_if(block.begin(), block.end(), is_of_side);
      const float sum = SumInLanes(block, [&](float x) { return is_of_side(x) ? x : 0.0f; });
      means[is_negative ? 1 : 0] = sum / static_cast<float>(std::max<std::ptrdiff_t>(size, 1));
    }
    Floats values;
    for (const float value : block) values.push_back(means[std::signbit(value) ? 1 : 0]);
    return values;
  };
}

// The rate by search, as its definition has it: those that go surely are the largest.
double RateOf(const Floats& block, double wanted) {
  Floats size;
  for (const float value : block) size.push_back(std::abs(value));
  std::sort(size.begin(), size.end(), std::greater<>());
  double rest = std::accumulate(size.begin(), size.end(), 0.0);
  double rate = wanted / rest;
  for (size_t sure = 0; sure < size.size() && size[sure] * rate >= 1; ++sure) {
    rest -= size[sure];
    rate = (wanted - static_cast<double>(sure) - 1) / rest;
  }
  return rate;
}

RoundTrip ExactTopK(double ratio) {
  return [ratio](const Floats& block, uint64_t) {
    std::vector<size_t> order(block.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return std::abs(block[a]) > std::abs(block[b]); });
    order.resize(
        static_cast<size_t>(std::max(1L, std::lround(ratio * static_cast<double>(block.size())))));
    Floats values(block.size(), 0.0f);
    for (const size_t i : order) values[i] = block[i];
    return values;
  };
}

Floats Blockwise(const RoundTrip& round_trip, const Floats& values, int64_t block, uint64_t rank) {
  Floats result;
  for (size_t first = 0; first < values.size(); first += static_cast<size_t>(block)) {
    const size_t end = std::min(first + static_cast<size_t>(block), values.size());
    const Floats part(values.begin() + static_cast<std::ptrdiff_t>(first),
                      values.begin() + static_cast<std::ptrdiff_t>(end));
    const uint64_t key = KeyOfBlock(kKey, rank, first / static_cast<size_t>(block));
    const Floats decoded = round_trip(part, key);
    result.insert(result.end(), decoded.begin(), decoded.end());
  }
  return result;
}

struct OracleCase {
  const char* spec;
  RoundTrip round_trip;
  bool is_two_phase;
};

std::vector<OracleCase> OracleCases() {
  return {{"levels:bits=8,block=512", Levels(8, true, false), true},
          {"levels:bits=4,block=512", Levels(4, true, false), true},
          {"levels:bits=3,block=64,norm=l2", Levels(3, true, true), true},
          {"levels:bits=2,block=8", Levels(2, true, false), true},
          {"levels:bits=3,block=8192,levels=exponential,norm=l2", Levels(3, false, true), true},
          {"levels:bits=4,block=512,levels=exponential", Levels(4, false, false), true},
          {"levels:bits=7,block=512,levels=exponential", Levels(7, false, false), true},
          {"levels:bits=8,block=512,levels=exponential", Levels(8, false, false), true},
          {"levels:bits=2,block=64,phases=1", Levels(2, true, false), false},
          {"levels:bits=3,block=64,levels=10008000", LevelsOfTable({0, 0.0625f, 0.5f, 1}), true},
          {"levels:bits=4,block=512,levels=010002000400100040008000",
           LevelsOfTable({0, 0x1p-8f, 0x1p-7f, 0x1p-6f, 0x1p-4f, 0.25f, 0.5f, 1}), true},
          {"levels:bits=3,block=8,levels=00008000", LevelsOfTable({0, 0, 0.5f, 1}), true},
          {"fp8:block=512", Float8(), true},
          {"natural", Natural(), true},
          {"minmax8:block=512", MinMax(), true},
          {"sign:block=512", Sign(), false},
          {"sign:block=8", Sign(), false},
          {"sign:block=64,phases=2", Sign(), true},
          {"means:block=512", TwoMeans(), true},
          {"means:block=8", TwoMeans(), true},
          {"topk:ratio=0.05,block=512,count=exact", ExactTopK(0.05), false}};
}

TEST(BlockCodec, gives_the_bits_of_the_scalar_oracle) {
  for (const OracleCase& one : OracleCases()) {
    auto codec = MakeCodec(one.spec);
    ASSERT_OK(codec);
    for (const int64_t count : {1, 9, 511, 1000, 20000}) {
      const int64_t block = (*codec)->block();
      Floats sum(static_cast<size_t>(count), 0.0f);
      for (int rank = 0; rank < 3; ++rank) {
        const Floats sent =
            Blockwise(one.round_trip, CodecInput(count, rank), block, static_cast<uint64_t>(rank));
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += sent[i];
      }
      if (one.is_two_phase) {
        sum = Blockwise(one.round_trip, sum, block, kForAllRanks);
        for (float& value : sum) value += 0.0f;  // decoded onto zeros: -0 does not stay
      }
      EXPECT_TRUE(SameBits(ReduceAll(**codec, 3, count)[0], sum)) << one.spec << " of " << count;
    }
  }
}

TEST(BlockCodec, a_residual_is_what_was_not_sent) {
  for (const OracleCase& one : OracleCases()) {
    auto codec = MakeCodec(one.spec);
    ASSERT_OK(codec);
    RunExchange(2, [&](Exchange& wire) {
      Floats in = CodecInput(3000, wire.rank());
      Floats residual = CodecInput(3000, wire.rank(), 8);
      Floats wanted = in;
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += residual[i];
      const Floats sent =
          Blockwise(one.round_trip, wanted, (*codec)->block(), static_cast<uint64_t>(wire.rank()));
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i] -= sent[i];
      Floats out(in.size());
      CodecPart part = PartOf(in, out);
      part.residual = ViewOf(residual);
      EXPECT_OK((*codec)->Reduce(wire, {&part, 1}));
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(residual[i], wanted[i]) << one.spec << i;
    });
  }
}

// Of one rank a gathered codec returns exactly what it has sent.
Floats Kept(const char* spec, Floats in) {
  auto codec = MakeCodec(spec);
  EXPECT_OK(codec);
  Floats out(in.size());
  RunExchange(1, [&](Exchange& wire) {
    const CodecPart part = PartOf(in, out);
    EXPECT_OK((*codec)->Reduce(wire, {&part, 1}));
  });
  return out;
}

TEST(TopK, a_sampled_threshold_keeps_nearly_as_many_as_wanted_and_only_the_largest) {
  const char* const spec = "topk:ratio=0.01,block=1048576";
  for (const int64_t count : {10'000, 300'000, 1 << 20}) {
    for (int seed = 0; seed < SimulatedRounds(5); ++seed) {
      const Floats in = CodecInput(count, 0, static_cast<uint32_t>(seed));
      const Floats out = Kept(spec, in);
      float least_kept = 1e30f, largest_dropped = 0;
      int64_t kept = 0;
      for (size_t i = 0; i < in.size(); ++i) {
        if (out[i] != 0) {
          EXPECT_EQ(out[i], in[i]);
          least_kept = std::min(least_kept, std::abs(in[i]));
          ++kept;
        } else {
          largest_dropped = std::max(largest_dropped, std::abs(in[i]));
        }
      }
      EXPECT_TRUE(kept * 10 >= count / 100 * 8 && kept <= count / 100 + 1) << kept;
      EXPECT_TRUE(least_kept >= largest_dropped);
    }
  }
}

TEST(TopK, equal_magnitudes_are_kept_by_their_index) {
  const Floats out = Kept("topk:ratio=0.01,block=1048576", Floats(100'000, -3.0f));
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i < 1000 ? -3.0f : 0.0f) << i;
}

TEST(TopK, a_sparse_tensor_is_sent_whole_and_without_its_zeros) {
  Floats in(200'000, 0.0f);
  for (size_t i = 0; i < in.size(); i += 1000) in[i] = static_cast<float>(i) + 1;

  EXPECT_TRUE(SameBits(Kept("topk:ratio=0.01,block=1048576", in), in));
}

// Heavy tails, so that some elements go surely.
Floats WithHeavyTails(int64_t count) {
  Floats in = CodecInput(count, 0);
  for (float& value : in) value = value * value * value;
  return in;
}

TEST(ByChance, each_element_goes_with_its_chance_and_over_it) {
  constexpr int64_t kCount = 4096;
  const Floats in = WithHeavyTails(kCount);
  const double rate = RateOf(in, 0.25 * kCount);
  constexpr int kDraws = Repetitions(400);
  auto codec = MakeCodec("chance:ratio=0.25,block=4096");
  ASSERT_OK(codec);
  double sent = 0, wanted = 0;
  std::vector<int> times(in.size(), 0);
  for (int draw = 0; draw < kDraws; ++draw) {
    RunExchange(1, [&](Exchange& wire) {
      Floats values = in;
      const CodecPart part = PartOf(values, values, KeyOfTensor(static_cast<uint64_t>(draw), "g"));
      EXPECT_OK((*codec)->Reduce(wire, {&part, 1}));
      for (size_t i = 0; i < in.size(); ++i) {
        if (values[i] == 0) continue;
        ++times[i];
        const double chance = std::min(std::abs(in[i]) * rate, 1.0);
        EXPECT_LT(std::abs(values[i] * chance / in[i] - 1), 0.02) << i;
      }
    });
  }
  for (size_t i = 0; i < in.size(); ++i) {
    const double chance = std::min(std::abs(in[i]) * rate, 1.0);
    sent += times[i];
    wanted += chance * kDraws;
    const double error = 5 * std::sqrt(chance * (1 - chance) * kDraws) + 0.02 * chance * kDraws + 3;
    EXPECT_LT(std::abs(times[i] - chance * kDraws), error) << i;
  }
  EXPECT_LT(std::abs(sent / wanted - 1), 0.02);
}

TEST(ByChance, zeros_stay_and_a_block_without_a_sum_is_seen) {
  Floats in(1000, 0.0f);
  in[7] = 3;
  EXPECT_TRUE(SameBits(Kept("chance:ratio=0.5,block=1000", in), in));
  EXPECT_TRUE(
      SameBits(Kept("chance:ratio=0.1,block=1000", Floats(1000, 0.0f)), Floats(1000, 0.0f)));
  EXPECT_TRUE(std::isnan(Kept("chance:ratio=0.1,block=1000", Floats(1000, 3e38f))[0]));
}

TEST(Levels, are_unbiased_and_differ_from_seed_to_seed) {
  auto codec = MakeCodec("levels:bits=3,block=64");
  ASSERT_OK(codec);
  constexpr int kDraws = Repetitions(4000);
  std::vector<double> mean(64, 0.0);
  const Floats in = CodecInput(64, 0);
  for (int draw = 0; draw < kDraws; ++draw) {
    RunExchange(1, [&](Exchange& wire) {
      Floats values = in;
      const CodecPart part =
          PartOf(values, values, KeyOfTensor(static_cast<uint64_t>(draw), "gradient"));
      EXPECT_OK((*codec)->Reduce(wire, {&part, 1}));
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += values[i] / kDraws;
    });
  }
  // Rounded twice, each time by at most half a step's deviation.
  const double step = *std::max_element(in.begin(), in.end()) / 3 * 1.5;
  const double bound = 5 * step / std::sqrt(static_cast<double>(kDraws));
  for (size_t i = 0; i < mean.size(); ++i) EXPECT_LT(std::abs(mean[i] - in[i]), bound) << i;
}

TEST(CodecKernels, every_instruction_set_gives_the_same_bits) {
  const CodecKernels& plain = *PortableCodecKernels();
  const CodecKernels& best = BestCodecKernels();
  for (const int64_t count : {1, 7, 8, 31, 64, 511, 1024, 4099}) {
    const Floats x = CodecInput(count, 0, 4);
    EXPECT_EQ(plain.largest_bits(x.data(), count), best.largest_bits(x.data(), count));
    EXPECT_EQ(plain.sum_of_squares(x.data(), count), best.sum_of_squares(x.data(), count));
    EXPECT_EQ(plain.sum_of_magnitudes(x.data(), count), best.sum_of_magnitudes(x.data(), count));
    for (int bits = 2; bits <= 8; ++bits) {
      Floats table(size_t{1} << (bits - 1));
      for (size_t i = 0; i < table.size(); ++i) {
        const float part = static_cast<float>(i) / static_cast<float>(table.size() - 1);
        table[i] = part * part;
      }
      const LevelsShape shapes[] = {{bits, true}, {bits, false}, {bits, false, table.data()}};
      for (const LevelsShape shape : shapes) {
        const auto bytes = static_cast<size_t>((count + 7) / 8 * bits);
        std::vector<uint8_t> a(bytes), b(bytes);
        Floats to_a(x.size(), 1.0f), to_b(x.size(), 1.0f);
        plain.encode_levels(x.data(), count, shape, 4.0f, 11, a.data());
        best.encode_levels(x.data(), count, shape, 4.0f, 11, b.data());
        EXPECT_TRUE(a == b) << bits << " bits, " << count;
        plain.decode_levels(a.data(), count, shape, -4.0f, to_a.data());
        best.decode_levels(a.data(), count, shape, -4.0f, to_b.data());
        EXPECT_TRUE(SameBits(to_a, to_b)) << bits << " bits, " << count;
      }
    }
    std::vector<uint8_t> signs_a(x.size()), signs_b(x.size());
    Floats sum_a(x.size(), 1.0f), sum_b(x.size(), 1.0f);
    plain.encode_signs(x.data(), count, signs_a.data());
    best.encode_signs(x.data(), count, signs_b.data());
    EXPECT_TRUE(signs_a == signs_b) << count;
    plain.decode_signs(signs_a.data(), count, -0.5f, sum_a.data());
    best.decode_signs(signs_a.data(), count, -0.5f, sum_b.data());
    const float sides[2] = {0.25f, -0.5f};
    plain.decode_sides(signs_a.data(), count, sides, sum_a.data());
    best.decode_sides(signs_a.data(), count, sides, sum_b.data());
    float sides_a[2], sides_b[2];
    plain.sums_of_sides(x.data(), count, sides_a);
    best.sums_of_sides(x.data(), count, sides_b);
    EXPECT_TRUE(sides_a[0] == sides_b[0] && sides_a[1] == sides_b[1]) << count;
    double below_a = 0, below_b = 0;
    EXPECT_EQ(plain.sum_below(x.data(), count, 1.0f, &below_a),
              best.sum_below(x.data(), count, 1.0f, &below_b));
    EXPECT_EQ(below_a, below_b);
    plain.encode_bytes(x.data(), count, -5.0f, 25.0f, signs_a.data());
    best.encode_bytes(x.data(), count, -5.0f, 25.0f, signs_b.data());
    EXPECT_TRUE(signs_a == signs_b) << count;
    plain.decode_bytes(signs_a.data(), count, -5.0f, 0.04f, -1.0f, sum_a.data());
    best.decode_bytes(signs_a.data(), count, -5.0f, 0.04f, -1.0f, sum_b.data());
    EXPECT_TRUE(SameBits(sum_a, sum_b)) << count;
    float range_a[2], range_b[2];
    plain.range(x.data(), count, &range_a[0], &range_a[1]);
    best.range(x.data(), count, &range_b[0], &range_b[1]);
    EXPECT_TRUE(range_a[0] == range_b[0] && range_a[1] == range_b[1]) << count;
    std::vector<uint32_t> a(x.size() + 1), b(x.size() + 1);
    EXPECT_EQ(plain.select(x.data(), count, 0x3f800000u, a.data()),
              best.select(x.data(), count, 0x3f800000u, b.data()));
    const int64_t drawn = plain.draw(x.data(), count, 0.5f, 11, a.data());
    EXPECT_EQ(drawn, best.draw(x.data(), count, 0.5f, 11, b.data()));
    for (int64_t i = 0; i < drawn; ++i) EXPECT_EQ(a[i], b[i]);
  }
}

}  // namespace
}  // namespace rabit
