// The wire format of what an inner rank of the tree tells its parent about all ranks below it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bucket_counts.h"
#include "base/bytes.h"
#include "base/result.h"
#include "control/rank_set.h"

namespace rabit {

// A message of ranks that say the same.
struct BundlePart {
  RankSet ranks;      // empty: all of the sender's subtree
  int last_rank = 0;  // of them, the last to say so
  // The ids in an announcement mean what they meant after this agreement.  Not its seen_cycle: that
  // is the least that every one of the ranks had seen.
  uint64_t ids_cycle = 0;
  std::vector<std::byte> message;  // as one rank would send it
};

struct BundleMessage {
  BucketCounts buckets_done;  // smallest over the sender's subtree
  std::vector<BundlePart> parts;
};

// Replaces the content of `out`.
void Encode(const BundleMessage& message, std::vector<std::byte>& out);
Result<BundleMessage> DecodeBundle(ConstBytes message);

}  // namespace rabit
