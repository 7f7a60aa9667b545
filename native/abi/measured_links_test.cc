#include "abi/measured_links.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "testing/inproc_transport.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

TEST(MeasuredLinks, rates_are_in_steps_that_noise_does_not_change) {
  const std::vector<double> found = InSteps({101e6, 198e6, 100e6, 830e6});

  EXPECT_EQ(found[0], 100e6);
  EXPECT_EQ(found[2], 100e6);
  EXPECT_LE(std::abs(found[1] - 200e6), 1);
  EXPECT_LE(std::abs(found[3] - 800e6), 1);
}

TEST(MeasuredLinks, all_processes_find_the_same) {
  testing::InprocFabric fabric(5);
  Places places = Places::Alike(3, 2);
  places.host_of = {0, 1, 1, 2, 3};  // two workers on one host
  places.bandwidth_of.resize(4);
  std::vector<std::vector<double>> found(5);

  testing::RunRanks(5, [&](int process) {
    const auto endpoints = fabric.Connect(process);
    auto rates = MeasureLinks(*endpoints, places, testing::Soon(), 0.001);
    ASSERT_OK(rates);
    found[static_cast<size_t>(process)] = *rates;
  });

  EXPECT_EQ(found[0].size(), size_t{4});
  for (const auto& rates : found) EXPECT_TRUE(rates == found[0]);
  for (const double rate : found[0]) EXPECT_TRUE(rate > 0 && std::isfinite(rate));
}

TEST(MeasuredLinks, one_host_alone_has_nothing_to_measure) {
  testing::InprocFabric fabric(2);
  const Places places{2, {0, 0}, {0.0}};

  const auto found = MeasureLinks(*fabric.Connect(0), places, testing::Soon());

  ASSERT_OK(found);
  EXPECT_TRUE((*found == std::vector<double>{1}));
}

}  // namespace
}  // namespace rabit
