#include "abi/measured_links.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "testing/inproc_transport.h"
#include "testing/memory_store.h"
#include "testing/run_ranks.h"
#include "testing/soon.h"
#include "testing/test.h"

namespace rabit {
namespace {

TEST(MeasuredLinks, rates_are_told_in_steps_that_noise_does_not_change) {
  const std::vector<double> rates = {101e6, 198e6, 100e6, 830e6};

  const std::string record = RecordOfRates(rates);

  EXPECT_EQ(record, "106 0 4 0 12");
  const auto told = RatesFromRecord(record, 4);
  ASSERT_OK(told);
  const double least = told->front();
  EXPECT_LE(std::abs(least - 94.9e6), 1e5);
  EXPECT_TRUE((*told == std::vector<double>{least, 2 * least, least, 8 * least}));
  EXPECT_EQ(RatesFromRecord("106 0 4", 3).status().code(), Code::kInternal);
  EXPECT_EQ(RatesFromRecord("106 0 x 4", 3).status().code(), Code::kInternal);
  EXPECT_EQ(RatesFromRecord("106 0 -4 4", 3).status().code(), Code::kInternal);
}

TEST(MeasuredLinks, all_processes_hear_the_same) {
  for (const bool servers_meet : {false, true}) {
    testing::InprocFabric fabric(5);
    testing::MemoryStore store;
    Places places = Places::Alike(3, 2);
    places.host_of = {0, 1, 1, 2, 3};  // two workers on one host
    places.bandwidth_of.resize(4);
    std::vector<std::unique_ptr<Transport>> endpoints;
    for (int process = 0; process < 5; ++process) endpoints.push_back(fabric.Connect(process));
    std::vector<std::vector<double>> heard(5);

    testing::RunRanks(5, [&](int process) {
      auto found =
          MeasureLinks(*endpoints[static_cast<size_t>(process)], places, servers_meet, store,
                       "measured/", testing::Soon(), {std::chrono::milliseconds(2), 64});
      ASSERT_OK(found);
      heard[static_cast<size_t>(process)] = *found;
    });

    EXPECT_EQ(heard[0].size(), size_t{4});
    for (const auto& each : heard) EXPECT_TRUE(each == heard[0]);
    for (const double rate : heard[0]) EXPECT_TRUE(rate >= 1 && std::isfinite(rate));
  }
}

TEST(MeasuredLinks, one_host_alone_has_nothing_to_measure) {
  testing::InprocFabric fabric(2);
  testing::MemoryStore store;
  const Places places{2, {0, 0}, {0.0}};
  std::vector<std::unique_ptr<Transport>> endpoints;
  for (int process = 0; process < 2; ++process) endpoints.push_back(fabric.Connect(process));

  testing::RunRanks(2, [&](int process) {
    const auto found = MeasureLinks(*endpoints[static_cast<size_t>(process)], places, false, store,
                                    "measured/", testing::Soon());
    ASSERT_OK(found);
    EXPECT_TRUE((*found == std::vector<double>{1}));
  });
}

}  // namespace
}  // namespace rabit
