// What ranks that meet tell each other, by way of the lowest of them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store.h"

namespace rabit {

// Each of `ranks` (ascending, `rank` is one of them) says a word, and gets what all have said, in
// their order.  The lowest asks for every word and tells the others all at once: among n ranks that
// is some 3n questions to the store in place of n².  `key` begins the keys; one for each gathering.
// A word has no kWordEnd in it; all words together are one value of a store.  Blocks; who is
// missing at the deadline is named by the lowest, and for that the others wait a second longer.
inline constexpr char kWordEnd = '\x1e';
Result<std::vector<std::string>> GatherWords(Store& store, const std::string& key,
                                             std::span<const int> ranks, int rank,
                                             std::string_view mine, Deadline deadline);

}  // namespace rabit
