// Names of operations whose caller gave none: "allreduce.noname.17".
#pragma once

#include <string_view>

namespace rabit {

// True for a name that ends in ".noname." and a number, as the Python package makes them
// (Submission.auto_name).  Numbers only rise, so such a name does not come again: tables forget it
// early, which keeps them small and leaves their room to names that do.  One that comes again all
// the same is announced in full once more.
inline bool IsNumbered(std::string_view name) {
  constexpr std::string_view kMark = ".noname.";
  const size_t last_other = name.find_last_not_of("0123456789");
  if (last_other == std::string_view::npos || last_other + 1 == name.size()) return false;
  return name.substr(0, last_other + 1).ends_with(kMark);
}

}  // namespace rabit
