#include "control/crosscheck.h"

#include <algorithm>
#include <cstdio>

#include "base/kind.h"
#include "control/agreement_wire.h"

namespace rabit {
namespace {

constexpr std::string_view kSameModel = "Build the model the same way on every rank.";
constexpr std::string_view kSameOrder =
    "Lay the tensor out in memory the same way on every rank, such as by contiguous().";
constexpr std::string_view kSameCall = "Make the same call on every rank.";

std::string Quote(std::string_view name) { return "'" + std::string(name) + "'"; }

std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string DeviceText(DeviceKind kind) { return kind == DeviceKind::kCpu ? "the CPU" : "a GPU"; }

std::string CodecText(const std::string& codec) { return codec.empty() ? "none" : codec; }

Status Differ(std::string_view name, const RankSignature& a, const RankSignature& b,
              std::string_view what, const std::string& a_value, const std::string& b_value,
              std::string_view advice) {
  const std::string label = what.empty() ? std::string() : std::string(what) + " ";
  return Mismatch(Title(a.signature.kind, name) + ": rank " + std::to_string(a.rank) +
                  " submitted " + label + a_value + ", rank " + std::to_string(b.rank) + " " +
                  label + b_value + ". " + std::string(advice));
}

// A rank of a scatter that is not its root brings no data; without a tensor it brings no shape.
bool BringsNoShape(const RankSignature& one) {
  return one.signature.kind == Kind::kScatter && one.rank != one.signature.root &&
         one.signature.shape.empty();
}

// And in memory the same order of axes.
bool HaveSameShape(const Signature& a, const Signature& b) {
  if (a.shape.size() != b.shape.size() || a.axis_order != b.axis_order) return false;
  // The first extent of such kinds is each rank's own.
  const size_t skipped = HasVariablePart(a.kind) && !a.shape.empty() ? 1 : 0;
  return std::equal(a.shape.begin() + skipped, a.shape.end(), b.shape.begin() + skipped);
}

Status CheckSplits(std::string_view name, const RankSignature& one, size_t members) {
  const Signature& s = one.signature;
  const bool is_sender = s.kind == Kind::kAlltoall || one.rank == s.root;
  if (!is_sender) return {};
  const std::string who = Title(s.kind, name) + ": rank " + std::to_string(one.rank);
  if (s.shape.empty()) {
    return InvalidArgument(who + " submitted a scalar, which has no rows to split. Pass a tensor " +
                           "with at least one axis.");
  }
  const int64_t rows = s.shape[0];
  if (s.splits.empty()) {
    if (rows % static_cast<int64_t>(members) == 0) return {};
    return InvalidArgument(who + " submitted " + Describe(s) + " without splits: " +
                           std::to_string(rows) + " rows do not divide among " +
                           std::to_string(members) + " ranks. Pass splits, one per rank.");
  }
  // Splits of an alltoall are exchanged between the ranks, so the announcement has their sum only.
  if (s.kind == Kind::kAlltoall) {
    if (s.splits.size() == 1 && s.splits[0] == rows) return {};
    return InvalidArgument(who + " submitted " + std::to_string(s.splits.size()) + " splits with " +
                           Describe(s) + ": splits of an alltoall go from rank " +
                           "to rank, and only their sum is announced. Report this.");
  }
  if (s.splits.size() != members) {
    return InvalidArgument(who + " submitted " + std::to_string(s.splits.size()) +
                           " splits for a group of " + std::to_string(members) +
                           " ranks. Pass one per rank.");
  }
  int64_t sum = 0;
  for (int64_t split : s.splits) {
    // The numbers come from another rank: a sum that wraps around could equal the rows.
    if (split < 0 || __builtin_add_overflow(sum, split, &sum)) {
      return InvalidArgument(who + " submitted the split " + std::to_string(split) +
                             ". Splits are numbers of rows, from 0 on.");
    }
  }
  if (sum == rows) return {};
  return InvalidArgument(who + " submitted splits that add up to " + std::to_string(sum) +
                         " rows for " + Describe(s) + ", which has " + std::to_string(rows) +
                         ". Make the splits add up to the first extent.");
}

}  // namespace

bool IsShapeSendable(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (int64_t extent : shape) {
    // An extent of 0 must not hide that the others overflow, since later code multiplies parts of
    // the shape.
    if (extent < 0 || __builtin_mul_overflow(product, std::max<int64_t>(extent, 1), &product))
      return false;
  }
  return shape.size() <= kDimensionsMax;
}

bool HasVariablePart(Kind kind) { return TraitsOf(kind).has_free_rows; }

bool HasSameFixedPart(const Signature& a, const Signature& b) {
  const Work& work = a;
  return work == b && a.priority == b.priority && HaveSameShape(a, b);
}

Status CheckAlone(std::string_view name, const RankSignature& one, std::span<const int> members) {
  const Signature& s = one.signature;
  const std::string who = Title(s.kind, name) + ": rank " + std::to_string(one.rank);
  const auto is_member = [members](int rank) {
    return std::binary_search(members.begin(), members.end(), rank);
  };
  const KindTraits& traits = TraitsOf(s.kind);
  if (traits.is_rooted && !is_member(s.root)) {
    return InvalidArgument(who + " submitted root " + std::to_string(s.root) +
                           ", which is not a member of group " + std::to_string(s.group) +
                           " (ranks " + RankList(members) + "). Pass the global rank of a member.");
  }
  if (traits.is_pair && (!is_member(s.root) || s.root == one.rank)) {
    return InvalidArgument(who + " named partner " + std::to_string(s.root) +
                           "; the partner is another member of group " + std::to_string(s.group) +
                           " (ranks " + RankList(members) + ").");
  }
  if (traits.reduces && !Supports(s.dtype, s.op)) {
    return Unsupported(who + " submitted op " + std::string(Name(s.op)) + " for " +
                       std::string(Name(s.dtype)) + "; " + std::string(LimitOf(s.dtype)) +
                       ". Choose another op or type.");
  }
  if (traits.has_splits) return CheckSplits(name, one, members.size());
  if (traits.needs_rows && s.shape.empty()) {
    return InvalidArgument(who + " submitted a scalar, which has no rows. Pass a tensor with at " +
                           "least one axis.");
  }
  return {};
}

Status CheckPair(std::string_view name, const RankSignature& a, const RankSignature& b) {
  const Signature& x = a.signature;
  const Signature& y = b.signature;
  // The kind comes first, since the fields below mean different things for different kinds.
  if (x.kind != y.kind) {
    return Mismatch(Quote(name) + ": rank " + std::to_string(a.rank) + " submitted " +
                    std::string(Name(x.kind)) + ", rank " + std::to_string(b.rank) + " " +
                    std::string(Name(y.kind)) + ". " + std::string(kSameCall));
  }
  const bool has_shapes = !BringsNoShape(a) && !BringsNoShape(b);
  if (x.dtype != y.dtype || (has_shapes && !HaveSameShape(x, y))) {
    const bool differs_in_order = x.dtype == y.dtype && x.shape == y.shape;
    return Differ(name, a, b, "", Describe(x), Describe(y),
                  differs_in_order ? kSameOrder : kSameModel);
  }
  if (TraitsOf(x.kind).reduces && x.op != y.op)
    return Differ(name, a, b, "op", std::string(Name(x.op)), std::string(Name(y.op)), kSameCall);
  if (x.root != y.root)
    return Differ(name, a, b, "root", std::to_string(x.root), std::to_string(y.root), kSameCall);
  if (x.prescale != y.prescale) {
    return Differ(name, a, b, "prescale", NumberText(x.prescale), NumberText(y.prescale),
                  kSameCall);
  }
  if (x.postscale != y.postscale) {
    return Differ(name, a, b, "postscale", NumberText(x.postscale), NumberText(y.postscale),
                  kSameCall);
  }
  if (x.codec != y.codec) {
    return Differ(name, a, b, "codec", CodecText(x.codec), CodecText(y.codec),
                  "Choose the same compression on every rank.");
  }
  if (x.backend != y.backend) {
    return Differ(name, a, b, "backend", std::to_string(x.backend), std::to_string(y.backend),
                  "Choose the same backend on every rank.");
  }
  if (x.device_kind != y.device_kind) {
    return Differ(name, a, b, "a tensor on", DeviceText(x.device_kind), DeviceText(y.device_kind),
                  "Put the model on the same kind of device on every rank.");
  }
  return {};
}

std::string RankText(int rank) { return "rank " + std::to_string(rank); }

std::string Title(Kind kind, std::string_view name) {
  return std::string(Name(kind)) + " " + Quote(name);
}

}  // namespace rabit
