// What each kind of collective is like.  Whoever needs a property of a kind asks here, so that a
// new kind is one row.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace rabit {

// What an agreement brings where the ranks' inputs came with their announcements.
enum class Carried : uint8_t {
  kNothing,   // inputs are exchanged
  kReduced,   // the reduction of all
  kOfRoot,    // the root's
  kOneByOne,  // all of them, in the order of the ranks
};

struct KindTraits {
  Kind kind;
  bool moves_data = true;         // false: all there is to exchange fits into the negotiation
  bool reduces = false;           // elements of several ranks become one
  bool is_rooted = false;         // one member of the group has a part of its own
  bool is_pair = false;           // between two ranks; the root is the partner
  bool starts_at_root = false;    // only the root hands data in
  bool keeps_shape = false;       // what arrives has the shape of what was submitted
  bool needs_rows = false;        // joined or cut along axis 0, which a scalar does not have
  bool has_free_rows = false;     // extent 0 may differ between the ranks
  bool has_splits = false;        // the sender says how many rows each rank gets
  bool has_even_parts = false;    // ranks hold parts of one whole, mostly even: see EvenRows
  bool is_divisible = false;      // element-wise: parts may run apart, and beside parts of others
  bool has_equal_counts = false;  // every rank, of other groups too, counts the same elements
  Carried carried = Carried::kNothing;  // of small inputs; see control/carried_data.h

  // The root, or the partner, has to be named.
  constexpr bool names_a_rank() const { return is_rooted || is_pair; }
};

inline constexpr std::array<KindTraits, 13> kKindTraits = {{
    {.kind = Kind::kAllreduce,
     .reduces = true,
     .keeps_shape = true,
     .is_divisible = true,
     .has_equal_counts = true,
     .carried = Carried::kReduced},
    {.kind = Kind::kAllgather,
     .needs_rows = true,
     .has_free_rows = true,
     .has_even_parts = true,
     .carried = Carried::kOneByOne},
    {.kind = Kind::kBroadcast,
     .is_rooted = true,
     .starts_at_root = true,
     .keeps_shape = true,
     .is_divisible = true,
     .has_equal_counts = true,
     .carried = Carried::kOfRoot},
    {.kind = Kind::kReduce,
     .reduces = true,
     .is_rooted = true,
     .keeps_shape = true,
     .is_divisible = true,
     .has_equal_counts = true,
     .carried = Carried::kReduced},
    {.kind = Kind::kReduceScatter,
     .reduces = true,
     .needs_rows = true,
     .has_even_parts = true,
     .carried = Carried::kReduced},
    {.kind = Kind::kAlltoall,
     .needs_rows = true,
     .has_free_rows = true,
     .has_splits = true,
     .carried = Carried::kOneByOne},
    {.kind = Kind::kGather, .is_rooted = true, .needs_rows = true, .has_free_rows = true},
    {.kind = Kind::kScatter,
     .is_rooted = true,
     .starts_at_root = true,
     .needs_rows = true,
     .has_free_rows = true,
     .has_splits = true},
    {.kind = Kind::kBarrier, .moves_data = false, .has_equal_counts = true},
    {.kind = Kind::kSend, .is_pair = true},
    {.kind = Kind::kRecv, .is_pair = true, .keeps_shape = true},
    {.kind = Kind::kJoin, .moves_data = false},
    {.kind = Kind::kVote, .moves_data = false, .needs_rows = true, .has_free_rows = true},
}};

constexpr bool KindTraitsAreInOrder() {
  for (size_t i = 0; i < kKindTraits.size(); ++i) {
    if (static_cast<size_t>(kKindTraits[i].kind) != i) return false;
  }
  return true;
}
static_assert(KindTraitsAreInOrder(), "a row's place is the value of its kind");

constexpr const KindTraits& TraitsOf(Kind kind) { return kKindTraits[static_cast<size_t>(kind)]; }

}  // namespace rabit
