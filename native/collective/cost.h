// The latency/bandwidth model by which algorithms are compared.
#pragma once

#include <cstdint>

namespace rabit {

struct LinkModel {
  double latency_us = 20;  // of one message
  double bytes_per_us = 2000;
  double reduce_bytes_per_us = 8000;
};

// gather_all takes one step for each piece of this size.
inline constexpr int64_t kGatherAllPieceBytes = 64 << 10;

// Estimates for `size` >= 2 ranks that each hold `bytes`, in microseconds.  The alpha-beta-gamma
// model of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
// MPICH", 2005; sending and receiving overlap.
double DirectCostMicros(const LinkModel& link, int size, int64_t bytes);
double GatherAllCostMicros(const LinkModel& link, int size, int64_t bytes);
double RingCostMicros(const LinkModel& link, int size, int64_t bytes);
double RecursiveDoublingCostMicros(const LinkModel& link, int size, int64_t bytes);
double HalvingDoublingCostMicros(const LinkModel& link, int size, int64_t bytes);
double TreeCostMicros(const LinkModel& link, int size, int64_t bytes);
double DoubleTreeCostMicros(const LinkModel& link, int size, int64_t bytes);
double HierarchicalCostMicros(const LinkModel& link, int size, int64_t bytes);

// `bytes` is the whole result: of an allgather, a gather, a scatter, an alltoall's receive side.
double ExchangeCostMicros(const LinkModel& link, int size, int64_t bytes);
double BroadcastCostMicros(const LinkModel& link, int size, int64_t bytes);

int CeilLog2(int size);

}  // namespace rabit
