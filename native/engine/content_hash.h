// The content of a bucket as one number: equal on all ranks exactly if they exchange the same.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/bucket_job.h"

namespace rabit {

// Continues `hash` with `value`; the order matters.
constexpr uint64_t MixHash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 29;
}
uint64_t MixHash(uint64_t hash, std::string_view text);

// Its number, its lane, what is done, and which elements of which agreed tensors, in order.
uint64_t ContentHash(const BucketJob& job);

// A tag's sequence for something of this content.  Messages of different content never match, so
// that different tensors are never combined.  The low bits are the hash: MPI cuts tags.
constexpr uint64_t CheckedSequence(uint64_t number, uint64_t hash) {
  return (number & 0xff) << 32 | hash >> 32;
}

}  // namespace rabit
