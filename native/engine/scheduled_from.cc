#include "engine/scheduled_from.h"

#include "base/even_rows.h"
#include "base/kind.h"

namespace rabit {

int64_t AgreedCount(const ReadyTensor& ready) {
  const std::vector<int64_t>& shape = ready.signature.shape;
  if (const int64_t parts = ready.signature.even_parts; parts > 0) {
    // Every rank cuts by the largest part, so that all have as many buckets; smaller parts leave
    // the last ones empty.
    int64_t count = EvenRows{shape[0], parts}.largest();
    for (size_t i = 1; i < shape.size(); ++i) count *= shape[i];
    return count;
  }
  const KindTraits& traits = TraitsOf(ready.signature.kind);
  const bool has_extents = traits.has_free_rows && traits.moves_data;
  if (!has_extents || ready.extents.empty() || shape.empty()) return ready.signature.count();
  int64_t count = 0;
  for (int64_t extent : ready.extents) count += extent;
  for (size_t i = 1; i < shape.size(); ++i) count *= shape[i];
  return count;
}

ScheduledTensor ScheduledFrom(const ReadyTensor& ready, int32_t slot, int64_t count,
                              int64_t cut_multiple, bool is_of_all, uint32_t avoided_backends) {
  ScheduledTensor tensor{ready.signature, slot,         count,    ready.signature.priority,
                         ready.joined,    cut_multiple, is_of_all};
  tensor.avoided_backends = avoided_backends;
  return tensor;
}

}  // namespace rabit
