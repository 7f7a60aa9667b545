// The latency/bandwidth model by which algorithms are compared.
#pragma once

#include <cstdint>
#include <optional>

#include "base/measured.h"

namespace rabit {

// What the links between some ranks cost while all of these ranks use them, in microseconds and
// bytes.  The defaults are of an ordinary network; MeasureLink finds those of a real one.
struct LinkModel {
  double latency_us = 20;  // of a message to a peer and one from it
  double fan_us = 2;       // of each further peer in the same step
  double message_us = 1;   // of each further message in a pipeline
  double bytes_per_us = 2000;
  double reduce_bytes_per_us = 8000;
  // Ranks share cores, so that work counts wherever it is done: not the busiest rank, but the sum
  // over all of them decides.
  bool is_crowded = false;
  bool is_measured = false;
};

// What the links of a job cost.
struct LinkCosts {
  LinkModel slowest;  // of the slowest links that there are
  // Of ranks that share a host, where others do not; nothing: not measured.
  std::optional<LinkModel> within_host = {};
};

// Estimates for `size` >= 2 ranks that each hold `bytes`, in microseconds.  The alpha-beta-gamma
// model of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
// MPICH", 2005, and a cost for each message of a pipeline; sending and receiving overlap.
double DirectCostMicros(const LinkModel& link, int size, int64_t bytes);
double GatherAllCostMicros(const LinkModel& link, int size, int64_t bytes);
double RingCostMicros(const LinkModel& link, int size, int64_t bytes);
double RecursiveDoublingCostMicros(const LinkModel& link, int size, int64_t bytes);
double HalvingDoublingCostMicros(const LinkModel& link, int size, int64_t bytes);
double TreeCostMicros(const LinkModel& link, int size, int64_t bytes);
double DoubleTreeCostMicros(const LinkModel& link, int size, int64_t bytes);
double HierarchicalCostMicros(const LinkModel& link, int size, int64_t bytes);
// `local_size` ranks on each of `hosts` hosts, with links of two kinds.
double HierarchicalCostMicros(const LinkModel& local, const LinkModel& across, int local_size,
                              int hosts, int64_t bytes);

int CeilLog2(int size);

}  // namespace rabit
