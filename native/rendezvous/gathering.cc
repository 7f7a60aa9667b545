#include "rendezvous/gathering.h"

#include <chrono>

namespace rabit {
namespace {

constexpr std::chrono::seconds kVerdictTime{1};

Deadline AfterVerdict(Deadline deadline) {
  return deadline > Deadline::max() - kVerdictTime ? deadline : deadline + kVerdictTime;
}

Result<std::string> AskForWords(Store& store, const std::string& key, std::span<const int> others,
                                Deadline deadline) {
  std::string words;
  for (const int rank : others) {
    Result<std::string> word = store.Get(key + std::to_string(rank), deadline);
    if (!word.ok()) {
      // Who has failed may be another one than whose word is missing.
      const int known = word.status().culprit();
      return Status(word.status()).WithCulprit(known >= 0 ? known : rank);
    }
    words += *word + kWordEnd;
  }
  return words;
}

}  // namespace

Result<std::vector<std::string>> GatherWords(Store& store, const std::string& key,
                                             std::span<const int> ranks, int rank,
                                             std::string_view mine, Deadline deadline) {
  if (mine.find(kWordEnd) != std::string_view::npos) {
    return InvalidArgument("rank " + std::to_string(rank) + " says '" + std::string(mine) +
                           "' under '" + key + "', which has the end of a word in it");
  }
  const std::string all_key = key + "all";
  std::string all;
  if (rank != ranks.front()) {
    RABIT_RETURN_IF_ERROR(store.Set(key + std::to_string(rank), mine));
    RABIT_ASSIGN_OR_RETURN(all, store.Get(all_key, AfterVerdict(deadline)));
  } else {
    RABIT_ASSIGN_OR_RETURN(all, AskForWords(store, key, ranks.subspan(1), deadline));
    all = std::string(mine) + kWordEnd + all;
    if (ranks.size() > 1) RABIT_RETURN_IF_ERROR(store.Set(all_key, all));
  }
  std::vector<std::string> words;
  for (size_t begin = 0, end; (end = all.find(kWordEnd, begin)) != std::string::npos;
       begin = end + 1) {
    words.push_back(all.substr(begin, end - begin));
  }
  if (words.size() == ranks.size()) return words;
  return Mismatch("the store holds " + std::to_string(words.size()) + " words under '" + all_key +
                  "' for " + std::to_string(ranks.size()) +
                  " ranks; run the same version on every rank");
}

}  // namespace rabit
