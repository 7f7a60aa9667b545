// BackendSelector: which backend runs a bucket.
#pragma once

#include <memory>
#include <span>

#include "backend/backend.h"
#include "base/ids.h"
#include "base/result.h"

namespace rabit {

// The cheapest backend that accepts the collective; a pure function of what all ranks agree on, so
// that every rank chooses the same one.  Thread-safe.
class BackendSelector {
 public:
  explicit BackendSelector(std::span<const std::unique_ptr<Backend>> backends)
      : backends_(backends) {}

  // `wanted`: kAnyBackend, or the one that the request names.  kUnsupported lists why each backend
  // refused.
  Result<Backend*> Choose(const CollectiveSpec& spec, const Group& group, BackendId wanted) const;

 private:
  const std::span<const std::unique_ptr<Backend>> backends_;
};

}  // namespace rabit
