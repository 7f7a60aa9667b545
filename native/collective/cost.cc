#include "collective/cost.h"

#include <algorithm>

namespace rabit {
namespace {

// A message that leaves together with others costs a fraction of a whole latency.
constexpr double kConcurrentMessage = 0.1;

double Latency(const LinkModel& link, double steps) { return steps * link.latency_us; }
double Fan(const LinkModel& link, int size) {  // one message to each of the others at once
  return link.latency_us * (1 + kConcurrentMessage * (size - 2));
}
double Wire(const LinkModel& link, double bytes) { return bytes / link.bytes_per_us; }
double Work(const LinkModel& link, double bytes) { return bytes / link.reduce_bytes_per_us; }
double Share(int size) { return static_cast<double>(size - 1) / size; }
double Folds(int size) { return (size & (size - 1)) == 0 ? 0 : 1; }  // extra steps: in and out

}  // namespace

int CeilLog2(int size) {
  int steps = 0;
  while ((1 << steps) < size) ++steps;
  return steps;
}

double DirectCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double share = Share(size) * static_cast<double>(bytes);
  return 2 * Fan(link, size) + Wire(link, 2 * share) + Work(link, share);
}

double GatherAllCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double all = static_cast<double>(bytes) * (size - 1);
  const double pieces = static_cast<double>(
      std::max<int64_t>(1, (bytes + kGatherAllPieceBytes - 1) / kGatherAllPieceBytes));
  return pieces * Fan(link, size) + Wire(link, all) + Work(link, all);
}

double RingCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double share = Share(size) * static_cast<double>(bytes);
  return Latency(link, 2 * (size - 1)) + Wire(link, 2 * share) + Work(link, share);
}

double RecursiveDoublingCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double steps = static_cast<int>(CeilLog2(size + 1) - 1) + 2 * Folds(size);
  const double all = steps * static_cast<double>(bytes);
  return Latency(link, steps) + Wire(link, all) + Work(link, all);
}

double HalvingDoublingCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const int power_steps = CeilLog2(size + 1) - 1;
  const double share = Share(1 << power_steps) * static_cast<double>(bytes);
  const double folded = 2 * Folds(size) * static_cast<double>(bytes);
  return Latency(link, 2 * power_steps + 2 * Folds(size)) + Wire(link, 2 * share + folded) +
         Work(link, share + folded / 2);
}

// An interior rank receives from two children and one parent.
double TreeCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double incoming = (size > 2 ? 3.0 : 2.0) * static_cast<double>(bytes);
  return Latency(link, 2 * CeilLog2(size)) + Wire(link, incoming) +
         Work(link, 2 * static_cast<double>(bytes));
}

// Every rank is interior in one half of the data and a leaf in the other.
double DoubleTreeCostMicros(const LinkModel& link, int size, int64_t bytes) {
  return Latency(link, 2 * CeilLog2(size) + 1) + Wire(link, 2 * static_cast<double>(bytes)) +
         Work(link, static_cast<double>(bytes));
}

// The topology is not known here: priced as three phases on equal links, so that only a caller who
// knows that hosts differ picks it.
double HierarchicalCostMicros(const LinkModel& link, int size, int64_t bytes) {
  return DirectCostMicros(link, size, bytes) + 2 * Fan(link, size);
}

double ExchangeCostMicros(const LinkModel& link, int size, int64_t bytes) {
  return Fan(link, size) + Wire(link, Share(size) * static_cast<double>(bytes));
}

double BroadcastCostMicros(const LinkModel& link, int size, int64_t bytes) {
  return Latency(link, CeilLog2(size)) + Wire(link, static_cast<double>(bytes));
}

}  // namespace rabit
