#include "collective/cost.h"

#include <algorithm>
#include <cmath>

#include "collective/chunks.h"

namespace rabit {
namespace {

double Latency(const LinkModel& link, double steps) { return steps * link.latency_us; }
double Fan(const LinkModel& link, int size) {  // one message to each of the others at once
  return link.latency_us + link.fan_us * (size - 2);
}
double Messages(const LinkModel& link, double further) { return further * link.message_us; }
double Wire(const LinkModel& link, double bytes) { return bytes / link.bytes_per_us; }
double Work(const LinkModel& link, double bytes) { return bytes / link.reduce_bytes_per_us; }
double Share(int size) { return static_cast<double>(size - 1) / size; }
double Folds(int size) { return (size & (size - 1)) == 0 ? 0 : 1; }  // extra steps: in and out
int PowerSteps(int size) { return CeilLog2(size + 1) - 1; }          // of the largest power of two

// What filling and draining a pipeline costs, about as much as a message.
constexpr double kPipelineMessages = 1;

double PiecesOf(double bytes, double piece_bytes) {
  return std::max(1.0, std::ceil(bytes / piece_bytes));
}
// Of a pipeline over `bytes`, where the transport has no say in it; see ChunkCountFor.
double ChunksOf(double bytes) {
  const ChunkLimits limits;
  return PiecesOf(bytes, std::clamp(bytes / 8, static_cast<double>(limits.bytes_min),
                                    static_cast<double>(limits.bytes_max)));
}

// Messages that one rank sends for one block, after the first of each step.
double HalvingMessages(int steps, double bytes) {
  double further = 0;
  for (int i = 1; i <= steps; ++i) {
    further += PiecesOf(bytes / (1 << i), static_cast<double>(kChunkBytesMax)) - 1;
  }
  return further;
}

}  // namespace

int CeilLog2(int size) {
  int steps = 0;
  while ((1 << steps) < size) ++steps;
  return steps;
}

double DirectCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double share = Share(size) * static_cast<double>(bytes);
  const double chunks = ChunksOf(static_cast<double>(bytes) / size);
  return 2 * Fan(link, size) + Messages(link, 2 * (size - 1) * (chunks - 1) + kPipelineMessages) +
         Wire(link, 2 * share) + Work(link, share);
}

double GatherAllCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double all = static_cast<double>(bytes) * (size - 1);
  const double pieces =
      PiecesOf(static_cast<double>(bytes), static_cast<double>(kGatherAllPieceBytes));
  // Everything is copied once, because what is sent must not change.
  return pieces * Fan(link, size) + Wire(link, all) + Work(link, all + static_cast<double>(bytes));
}

double RingCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double share = Share(size) * static_cast<double>(bytes);
  const double chunks = ChunksOf(static_cast<double>(bytes) / size);
  return 2 * (size - 1) * (Latency(link, 1) + Messages(link, chunks - 1)) +
         Messages(link, kPipelineMessages) + Wire(link, 2 * share) + Work(link, share);
}

double RecursiveDoublingCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double steps = PowerSteps(size) + 2 * Folds(size);
  const double all = steps * static_cast<double>(bytes);
  const double pieces = PiecesOf(static_cast<double>(bytes), static_cast<double>(kChunkBytesMax));
  // Everything is sent from where the result goes.  So what arrives waits in scratch memory until
  // the same piece has left; from the second piece on it has left the cache by then.
  const double late = all * (pieces - 1) / pieces;
  return steps * (Latency(link, 1) + Messages(link, pieces - 1)) + Wire(link, all) +
         Work(link, all + late);
}

double HalvingDoublingCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const int steps = PowerSteps(size);
  const double whole = static_cast<double>(bytes);
  const double share = Share(1 << steps) * whole;
  const double folded = 2 * Folds(size) * whole;
  const double block = static_cast<double>(std::min(bytes, kHalvingBlockBytes));
  const double blocks = PiecesOf(whole, static_cast<double>(kHalvingBlockBytes));
  // Where ranks share cores, one works while another waits: only the first wait shows.
  const double waiting =
      Latency(link, 2 * steps) +
      (blocks - 1) * (link.is_crowded ? Messages(link, 2 * steps) : Latency(link, 2 * steps));
  return waiting + blocks * Messages(link, HalvingMessages(steps, block)) +
         Latency(link, 2 * Folds(size)) + Wire(link, 2 * share + folded) +
         Work(link, share + folded / 2);
}

// An interior rank receives from two children and one parent; together the ranks receive 2 (n - 1)
// times the buffer.
double TreeCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double chunks = ChunksOf(static_cast<double>(bytes));
  const double busiest = size > 2 ? 3.0 : 2.0;
  const double incoming = link.is_crowded ? 2 * Share(size) : busiest;
  const double reduced = link.is_crowded ? Share(size) : busiest - 1;
  return Latency(link, 2 * CeilLog2(size)) + Messages(link, incoming * chunks) +
         Wire(link, incoming * static_cast<double>(bytes)) +
         Work(link, reduced * static_cast<double>(bytes));
}

// Every rank is interior in one half of the data and a leaf in the other.
double DoubleTreeCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double chunks = ChunksOf(static_cast<double>(bytes) / 2);
  return Latency(link, 2 * CeilLog2(size) + 1) + Messages(link, 4 * chunks) +
         Wire(link, 2 * static_cast<double>(bytes)) + Work(link, static_cast<double>(bytes));
}

// The topology is not known here: priced as three phases on equal links, so that only a caller who
// knows that hosts differ picks it.
double HierarchicalCostMicros(const LinkModel& link, int size, int64_t bytes) {
  return DirectCostMicros(link, size, bytes) + 2 * Fan(link, size);
}

// Owners reduce inside the hosts, exchange their parts across, and give them back.
double HierarchicalCostMicros(const LinkModel& local, const LinkModel& across, int local_size,
                              int hosts, int64_t bytes) {
  const double inside = DirectCostMicros(local, local_size, bytes);
  return inside + DirectCostMicros(across, hosts, bytes / local_size);
}

}  // namespace rabit
