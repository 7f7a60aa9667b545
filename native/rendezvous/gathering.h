// What ranks that meet tell each other, by way of the lowest of them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store.h"

namespace rabit {

// A word has none in it.
inline constexpr char kWordEnd = '\x1e';

// The words that each of `ranks` (ascending, `rank` is one of them) has published under key_of its
// number, in their order.  The lowest asks for every word, and publishes all under `all_key` in as
// few values as a store takes: among n ranks that are some 3n questions to the store in place of
// n². Blocks.  Whoever is missing at the deadline is named by the lowest; the others wait a second
// longer for that, and then look themselves.
Result<std::vector<std::string>> CollectWords(Store& store,
                                              const std::function<std::string(int)>& key_of,
                                              const std::string& all_key,
                                              std::span<const int> ranks, int rank,
                                              Deadline deadline);

// The same for ranks that begin by publishing `mine`.  `key` begins the keys; one for each
// gathering.
Result<std::vector<std::string>> GatherWords(Store& store, const std::string& key,
                                             std::span<const int> ranks, int rank,
                                             std::string_view mine, Deadline deadline);

}  // namespace rabit
