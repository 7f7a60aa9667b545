#include "arithmetic/waves.h"

#include <algorithm>
#include <bit>
#include <span>
#include <string>
#include <vector>

#include "arithmetic/wave_kernels.h"

namespace rabit {
namespace {

int32_t MagnitudeBits(float value) { return std::bit_cast<int32_t>(value) & 0x7fffffff; }

// Places of the `kept` largest magnitudes, in order; of equal ones the first.  Branches would be
// taken at random.
void Strongest(std::span<const float> waves, int32_t threshold, int32_t kept, uint16_t* places) {
  int32_t ties = kept;
  for (const float wave : waves) ties -= MagnitudeBits(wave) > threshold ? 1 : 0;
  int32_t found = 0;
  for (size_t k = 0; k < waves.size() && found < kept; ++k) {
    const int32_t bits = MagnitudeBits(waves[k]);
    const int32_t is_tie = bits == threshold ? 1 : 0;
    places[found] = static_cast<uint16_t>(k);
    found += (bits > threshold ? 1 : 0) + (is_tie & (ties > 0 ? 1 : 0));
    ties -= is_tie;
  }
}

}  // namespace

void SplitWaves(WaveShape shape, const float* basis, const float* transposed, const float* x,
                uint16_t* places, float* values, float* sent) {
  const WaveKernels& kernels = BestWaveKernels();
  const int32_t chunk = shape.chunk;
  std::vector<float> waves(static_cast<size_t>(chunk));
  std::fill_n(sent, shape.chunks * chunk, 0.0f);
  for (int64_t c = 0; c < shape.chunks; ++c, x += chunk, sent += chunk) {
    kernels.combine(x, transposed, chunk, waves.data());
    Strongest(waves, kernels.threshold(waves.data(), chunk, shape.kept), shape.kept, places);
    for (int32_t i = 0; i < shape.kept; ++i, ++places, ++values) {
      *values = waves[*places];
      kernels.add(*values, basis + int64_t{*places} * chunk, chunk, sent);
    }
  }
}

Status MeanOfWaves(WaveShape shape, int32_t ranks, const float* basis, const uint16_t* places,
                   const float* values, bool signs, float* mean) {
  const WaveKernels& kernels = BestWaveKernels();
  const int32_t chunk = shape.chunk;
  std::vector<float> sums(static_cast<size_t>(chunk)), senders(static_cast<size_t>(chunk));
  std::vector<size_t> sent(static_cast<size_t>(chunk));  // places, by any rank
  std::fill_n(mean, shape.chunks * chunk, 0.0f);
  for (int64_t c = 0; c < shape.chunks; ++c, mean += chunk) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    std::fill(senders.begin(), senders.end(), 0.0f);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const int64_t first = (rank * shape.chunks + c) * shape.kept;
      for (int64_t i = first; i < first + shape.kept; ++i) {
        const uint16_t place = places[i];
        // The places come from other ranks, and index `sums` next.
        if (place >= chunk) {
          return InvalidArgument("rank " + std::to_string(rank) + " names wave " +
                                 std::to_string(place) + " of " + std::to_string(chunk) +
                                 ": pass the same chunk on all ranks");
        }
        sums[place] += values[i];
        senders[place] += 1;
      }
    }
    size_t found = 0;
    for (size_t k = 0; k < sums.size(); ++k) {
      sent[found] = k;
      // Written without a branch, as which places were sent is random: the write at `found` is
      // overwritten if it does not count.
      found += senders[k] > 0 ? 1 : 0;
    }
    for (size_t i = 0; i < found; ++i) {
      const size_t k = sent[i];
      kernels.add(sums[k] / senders[k], basis + k * sums.size(), chunk, mean);
    }
    if (signs) kernels.signs(mean, chunk);
  }
  return Status();
}

}  // namespace rabit
