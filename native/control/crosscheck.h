// Do the ranks agree about one tensor?  Pure functions; the texts name the tensor, the ranks and
// the values.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/group.h"
#include "base/status.h"
#include "control/agreement.h"

namespace rabit {

struct RankSignature {
  int rank;
  const Signature& signature;
};

// What a rank's own signature says about itself: root and partner are members, splits fit the
// tensor.  `members`: global ranks of the group, ascending.
Status CheckAlone(std::string_view name, const RankSignature& one, std::span<const int> members);

// kMismatch unless the two can be one collective.  Not compared: priority (the lowest rank's is
// taken), the device index, extent 0 and splits of the kinds that let them differ, the shape of a
// scatter away from its root.
Status CheckPair(std::string_view name, const RankSignature& a, const RankSignature& b);

// Whether decoders take it: no negative extents, a product that fits, even without those of zero.
bool IsShapeSendable(const std::vector<int64_t>& shape);
// Extent 0, or splits as well, are sent again with every announcement.
bool HasVariablePart(Kind kind);
// Equal except for the variable part: this rank may announce `b` by the id it got for `a`.
bool HasSameFixedPart(const Signature& a, const Signature& b);

// "allreduce 'conv1.weight'"
std::string Title(Kind kind, std::string_view name);
std::string RankText(int rank);  // "rank 3"

}  // namespace rabit
