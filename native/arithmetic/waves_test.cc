// Waves against sums in double, and every kernel set against each other.
#include "arithmetic/waves.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <vector>

#include "arithmetic/wave_kernels.h"
#include "testing/noise.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::Floats;
using testing::Noise;

struct Cosines {
  Floats basis, transposed;

  explicit Cosines(int32_t size) : basis(static_cast<size_t>(size * size)), transposed(basis) {
    for (int k = 0; k < size; ++k) {
      for (int n = 0; n < size; ++n) {
        const double wave = std::cos(std::numbers::pi * (2 * n + 1) * k / (2.0 * size)) *
                            std::sqrt((k == 0 ? 1.0 : 2.0) / size);
        basis[static_cast<size_t>(k * size + n)] = static_cast<float>(wave);
        transposed[static_cast<size_t>(n * size + k)] = static_cast<float>(wave);
      }
    }
  }
};

struct Split {
  std::vector<uint16_t> places;
  Floats values, sent;

  Split(WaveShape shape, const Cosines& cosines, const Floats& x)
      : places(static_cast<size_t>(shape.chunks * shape.kept)),
        values(places.size()),
        sent(x.size()) {
    SplitWaves(shape, cosines.basis.data(), cosines.transposed.data(), x.data(), places.data(),
               values.data(), sent.data());
  }
};

TEST(Waves, the_strongest_of_each_chunk_are_those_of_sums_in_double) {
  for (const WaveShape shape : {WaveShape{5, 64, 8}, {3, 33, 5}, {4, 1, 1}, {2, 100, 100}}) {
    const Cosines cosines(shape.chunk);
    const auto size = static_cast<size_t>(shape.chunk), kept = static_cast<size_t>(shape.kept);
    const Floats x = Noise(shape.chunks * shape.chunk, 5);
    const Split found(shape, cosines, x);
    for (size_t c = 0; c < static_cast<size_t>(shape.chunks); ++c) {
      std::vector<double> waves(size, 0.0), sent(size, 0.0);
      for (size_t k = 0; k < size; ++k) {
        for (size_t n = 0; n < size; ++n) waves[k] += cosines.basis[k * size + n] * x[c * size + n];
      }
      std::vector<size_t> order(size);
      std::iota(order.begin(), order.end(), size_t{0});
      std::sort(order.begin(), order.end(),
                [&](size_t a, size_t b) { return std::abs(waves[a]) > std::abs(waves[b]); });
      order.resize(kept);
      std::sort(order.begin(), order.end());
      for (size_t i = 0; i < kept; ++i) {
        const size_t place = order[i];
        EXPECT_EQ(found.places[c * kept + i], place);
        EXPECT_LT(std::abs(found.values[c * kept + i] - waves[place]), 1e-5);
        for (size_t n = 0; n < size; ++n) sent[n] += waves[place] * cosines.basis[place * size + n];
      }
      for (size_t n = 0; n < size; ++n) {
        EXPECT_LT(std::abs(found.sent[c * size + n] - sent[n]), 1e-4);
      }
    }
  }
}

TEST(Waves, of_equal_waves_the_first_stay) {
  const WaveShape shape{1, 8, 3};
  Floats identity(64, 0.0f);
  for (size_t i = 0; i < 8; ++i) identity[i * 9] = 1;
  std::vector<uint16_t> places(3);
  Floats values(3), sent(8);
  const Floats x = {-1, 1, 2, 1, -1, 1, 1, 1};
  SplitWaves(shape, identity.data(), identity.data(), x.data(), places.data(), values.data(),
             sent.data());

  EXPECT_TRUE((places == std::vector<uint16_t>{0, 1, 2}));
  EXPECT_TRUE((sent == Floats{-1, 1, 2, 0, 0, 0, 0, 0}));
}

TEST(Waves, a_wave_is_the_mean_of_those_that_have_sent_it) {
  const WaveShape shape{2, 4, 2};
  Floats identity(16, 0.0f);
  for (size_t i = 0; i < 4; ++i) identity[i * 5] = 1;
  std::vector<uint16_t> places = {0, 1, 2, 3, /* the other rank */ 0, 2, 0, 1};
  const Floats values = {1, 2, 3, 4, 3, 5, 7, 9};
  Floats mean(8);
  ASSERT_OK(
      MeanOfWaves(shape, 2, identity.data(), places.data(), values.data(), false, mean.data()));
  EXPECT_TRUE((mean == Floats{2, 2, 5, 0, 7, 9, 3, 4}));
  ASSERT_OK(
      MeanOfWaves(shape, 2, identity.data(), places.data(), values.data(), true, mean.data()));
  EXPECT_TRUE((mean == Floats{1, 1, 1, 0, 1, 1, 1, 1}));

  places[5] = 4;
  const Status status =
      MeanOfWaves(shape, 2, identity.data(), places.data(), values.data(), false, mean.data());
  EXPECT_EQ(status.message(), "rank 1 names wave 4 of 4: pass the same chunk on all ranks");
}

TEST(Waves, a_chunk_that_is_not_finite_is_sent_so) {
  const WaveShape shape{2, 64, 8};
  Floats x = Noise(128, 3);
  x[70] = std::numeric_limits<float>::quiet_NaN();
  const Split found(shape, Cosines(64), x);

  for (size_t i = 0; i < 64; ++i) {
    EXPECT_TRUE(std::isfinite(found.sent[i]));
    EXPECT_TRUE(std::isnan(found.sent[64 + i]));
  }
}

TEST(WaveKernels, signs_of_what_is_not_finite_are_not_finite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const WaveKernels* kernels : {PortableWaveKernels(), &BestWaveKernels()}) {
    Floats x = {-0.5f, 0, 1e-40f, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
    kernels->signs(x.data(), 5);
    EXPECT_TRUE(x[0] == -1 && x[1] == 0 && x[2] == 1);
    EXPECT_TRUE(std::isnan(x[3]) && std::isnan(x[4]));
  }
}

TEST(WaveKernels, every_instruction_set_gives_the_same_bits) {
  const WaveKernels &plain = *PortableWaveKernels(), &best = BestWaveKernels();
  for (const int32_t count : {1, 7, 32, 64, 100}) {
    const Floats x = Noise(count, 1), rows = Noise(int64_t{count} * count, 2);
    Floats a(x.size()), b(x.size());
    plain.combine(x.data(), rows.data(), count, a.data());
    best.combine(x.data(), rows.data(), count, b.data());
    EXPECT_TRUE(a == b) << count;
    plain.add(0.3f, x.data(), count, a.data());
    best.add(0.3f, x.data(), count, b.data());
    EXPECT_TRUE(a == b) << count;
    plain.signs(a.data(), count);
    best.signs(b.data(), count);
    EXPECT_TRUE(a == b) << count;
    for (int32_t kept = 1; kept <= count; kept = kept * 2) {
      EXPECT_EQ(plain.threshold(x.data(), count, kept), best.threshold(x.data(), count, kept));
    }
  }
}

}  // namespace
}  // namespace rabit
