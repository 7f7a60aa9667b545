#include "engine/backend_selector.h"

#include <string>

namespace rabit {

Result<Backend*> BackendSelector::Choose(const CollectiveSpec& spec, const Group& group,
                                         BackendId wanted) const {
  Backend* best = nullptr;
  double best_cost_us = 0;
  std::string refusals;
  for (size_t i = 0; i < backends_.size(); ++i) {
    if (wanted != kAnyBackend && wanted != static_cast<BackendId>(i)) continue;
    Result<double> cost_us = backends_[i]->CostMicros(spec, group);
    if (!cost_us.ok()) {
      refusals += "; " + cost_us.status().message();
      continue;
    }
    if (best != nullptr && *cost_us >= best_cost_us) continue;
    best = backends_[i].get();
    best_cost_us = *cost_us;
  }
  if (best != nullptr) return best;
  return Unsupported("no backend runs a " + std::string(Name(spec.kind)) + " of " +
                     std::string(Name(spec.dtype)) + " with " + std::string(Name(spec.op)) +
                     refusals);
}

}  // namespace rabit
