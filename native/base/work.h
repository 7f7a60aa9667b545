// Work: what a collective is, apart from the data and the name.  A signature, a scheduled tensor
// and a bucket each are a Work with something more, so that a field is added in one place.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/kind.h"

namespace rabit {

// Equal on every rank.  The index of a device is not part of it: rank 3 may use its own cuda:3.
struct Work {
  Kind kind = Kind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  DeviceKind device_kind = DeviceKind::kCpu;
  int32_t root = -1;       // global rank; the partner for kSend and kRecv
  double prescale = 1.0;   // applied before the reduction
  double postscale = 1.0;  // applied to the result
  GroupId group = kWorld;
  std::string codec;  // what it travels as, with every parameter; empty: as it is
  BackendId backend = kAnyBackend;
  // Kinds whose ranks hold parts of one whole: into how many that is cut, by EvenRows.  0: the
  // parts follow no rule.
  int32_t even_parts = 0;

  // Backends that have failed: work that names none goes to others.  One bit for each.
  uint32_t avoided_backends = 0;

  bool Avoids(BackendId id) const { return (avoided_backends >> id & 1) != 0; }
  // Parts may run apart, and beside parts of others.
  bool is_divisible() const { return TraitsOf(kind).is_divisible || even_parts > 0; }
  // Every rank, of other groups too, counts the same elements.
  bool has_equal_counts() const { return TraitsOf(kind).has_equal_counts || even_parts > 0; }

  bool operator==(const Work&) const = default;
};

}  // namespace rabit
