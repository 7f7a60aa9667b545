#include "engine/content_hash.h"

#include <bit>

namespace rabit {

uint64_t MixHash(uint64_t hash, std::string_view text) {
  for (const char c : text) hash = MixHash(hash, static_cast<uint64_t>(c));
  return MixHash(hash, text.size());
}

uint64_t ContentHash(const BucketJob& job) {
  const Bucket& bucket = job.bucket;
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](auto value) { hash = MixHash(hash, static_cast<uint64_t>(value)); };
  add(bucket.id);
  // The lane is part of it because a tag has the lane: ranks that put a bucket on different lanes
  // would wait for each other.
  add(bucket.lane);
  add(bucket.kind);
  add(bucket.dtype);
  add(bucket.op);
  // This is the agreed kind of device, not that of this rank's tensors: a rank that has joined has
  // none.
  add(bucket.device_kind);
  add(std::bit_cast<uint64_t>(bucket.prescale));
  add(std::bit_cast<uint64_t>(bucket.postscale));
  add(bucket.root);
  add(bucket.group);
  hash = MixHash(hash, std::string_view(bucket.codec));
  add(bucket.backend);
  add(bucket.even_parts);
  for (const int rank : bucket.joined) add(rank);
  // Ranks outside of a group do not know how much the members of some kinds bring.
  const bool has_equal_counts = bucket.has_equal_counts();
  for (const BucketItem& item : job.items) {
    add(item.tensor->ready->id);
    if (!has_equal_counts) continue;
    add(item.partition.offset);
    add(item.partition.count);
  }
  return hash;
}

}  // namespace rabit
