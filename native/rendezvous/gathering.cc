#include "rendezvous/gathering.h"

#include <charconv>
#include <chrono>

#include "rendezvous/board.h"

namespace rabit {
namespace {

constexpr std::chrono::seconds kVerdictTime{1};

using KeyOf = std::function<std::string(int)>;
using Words = std::vector<std::string>;

Deadline AfterVerdict(Deadline deadline) {
  return deadline > Deadline::max() - kVerdictTime ? deadline : deadline + kVerdictTime;
}

std::string PieceKey(const std::string& all_key, size_t piece) {
  return piece == 0 ? all_key : all_key + "/" + std::to_string(piece);
}

Result<Words> AskForWords(Store& store, const KeyOf& key_of, std::span<const int> ranks,
                          Deadline deadline) {
  Words words;
  for (const int rank : ranks) {
    Result<std::string> word = store.Get(key_of(rank), deadline);
    if (!word.ok()) {
      // Who has failed may be another one than whose word is missing.
      const int known = word.status().culprit();
      return Status(word.status()).WithCulprit(known >= 0 ? known : rank);
    }
    words.push_back(*std::move(word));
  }
  return words;
}

// The first piece begins with the number of pieces.
Status Publish(Store& store, const std::string& all_key, const Words& words) {
  constexpr size_t kNumberBytesMax = 20;
  Words pieces(1);
  for (const std::string& word : words) {
    if (pieces.back().size() + word.size() + kNumberBytesMax > kStoreValueBytesMax) {
      pieces.emplace_back();
    }
    pieces.back() += word + kWordEnd;
  }
  pieces.front() = std::to_string(pieces.size()) + kWordEnd + pieces.front();
  // The first one last: whoever has it finds the others there.
  for (size_t piece = pieces.size(); piece-- > 0;) {
    RABIT_RETURN_IF_ERROR(store.Set(PieceKey(all_key, piece), pieces[piece]));
  }
  return Status();
}

// Takes what is before the next kWordEnd off `text`.
std::string_view TakeWord(std::string_view& text) {
  const size_t end = std::min(text.find(kWordEnd), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

Result<Words> ReadPublished(Store& store, const std::string& all_key, size_t count,
                            Deadline deadline) {
  Words words;
  size_t pieces = 1;
  for (size_t piece = 0; piece < pieces; ++piece) {
    RABIT_ASSIGN_OR_RETURN(const std::string text, store.Get(PieceKey(all_key, piece), deadline));
    std::string_view left = text;
    if (piece == 0) {
      const std::string_view number = TakeWord(left);
      (void)std::from_chars(number.data(), number.data() + number.size(), pieces);
    }
    while (!left.empty()) words.emplace_back(TakeWord(left));
  }
  // Every rank counts its own ranks; what another version has collected must not be indexed by
  // them.
  if (words.size() == count) return words;
  return Mismatch("the store holds " + std::to_string(words.size()) + " words under '" + all_key +
                  "' for " + std::to_string(count) + " ranks; run the same version on every rank");
}

}  // namespace

Result<std::vector<std::string>> CollectWords(Store& store, const KeyOf& key_of,
                                              const std::string& all_key,
                                              std::span<const int> ranks, int rank,
                                              Deadline deadline) {
  if (rank == ranks.front()) {
    RABIT_ASSIGN_OR_RETURN(Words words, AskForWords(store, key_of, ranks, deadline));
    // One rank reads all words and writes them together: if each rank read all, the store would
    // answer as many questions as there are pairs.
    if (ranks.size() > 1) RABIT_RETURN_IF_ERROR(Publish(store, all_key, words));
    return words;
  }
  Result<Words> words = ReadPublished(store, all_key, ranks.size(), AfterVerdict(deadline));
  if (words.status().code() != Code::kTimedOut) return words;
  // The lowest has come late, or not at all.
  RABIT_RETURN_IF_ERROR(AskForWords(store, key_of, ranks, Deadline{}).status());
  return Status(words.status()).WithCulprit(ranks.front());
}

Result<std::vector<std::string>> GatherWords(Store& store, const std::string& key,
                                             std::span<const int> ranks, int rank,
                                             std::string_view mine, Deadline deadline) {
  if (mine.find(kWordEnd) != std::string_view::npos) {
    return InvalidArgument("rank " + std::to_string(rank) + " cannot publish '" +
                           std::string(mine) + "' under '" + key +
                           "': it contains the byte 0x1e, which separates what ranks publish. "
                           "Remove that byte.");
  }
  if (ranks.size() == 1) return Words{std::string(mine)};
  const auto key_of = [&key](int number) { return key + std::to_string(number); };
  RABIT_RETURN_IF_ERROR(store.Set(key_of(rank), mine));
  return CollectWords(store, key_of, key + "all", ranks, rank, deadline);
}

}  // namespace rabit
