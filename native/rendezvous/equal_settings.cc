#include "rendezvous/equal_settings.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include "base/group.h"
#include "base/sha256.h"

namespace rabit {
namespace {

using std::chrono::seconds;

// More than a rank needs that has just read the records of the others.
constexpr seconds kPatience{5};
constexpr size_t kDigestBytes = 8;

struct Setting {
  std::string_view name, value, source;
};

// One value of one setting: who has it, and from where.
struct Holders {
  std::vector<int> ranks;
  std::vector<std::string_view> sources;  // each once
};

std::string_view TakeUntil(char separator, std::string_view* text) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view taken = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return taken;
}

std::vector<Setting> Parse(std::string_view text) {
  std::vector<Setting> settings;
  while (!text.empty()) {
    std::string_view entry = TakeUntil(kSettingSeparator, &text);
    Setting setting;
    setting.name = TakeUntil(kPartSeparator, &entry);
    setting.value = TakeUntil(kPartSeparator, &entry);
    setting.source = entry;
    settings.push_back(setting);
  }
  return settings;
}

std::string OnRanks(const Holders& holders) {
  std::string text = holders.ranks.size() == 1 ? " on rank " : " on ranks ";
  text += RankList(holders.ranks) + " (";
  // Paths of files may differ from rank to rank; some show where to look.
  constexpr size_t kSourcesMax = 3;
  for (size_t i = 0; i < std::min(holders.sources.size(), kSourcesMax); ++i) {
    if (i > 0) text += ", ";
    text += holders.sources[i];
  }
  if (holders.sources.size() > kSourcesMax) text += ", …";
  return text + ")";
}

std::string Describe(std::string_view name, const std::map<std::string_view, Holders>& by_value) {
  std::vector<std::pair<std::string_view, const Holders*>> values;
  for (const auto& [value, holders] : by_value) values.emplace_back(value, &holders);
  std::sort(values.begin(), values.end(), [](const auto& a, const auto& b) {
    return a.second->ranks.front() < b.second->ranks.front();
  });
  std::string text(name);
  for (size_t i = 0; i < values.size(); ++i) {
    text += i == 0 ? " is " : i + 1 < values.size() ? ", " : " and ";
    text += values[i].first.empty() ? std::string("empty") : std::string(values[i].first);
    text += OnRanks(*values[i].second);
  }
  return text;
}

}  // namespace

std::string SettingsDigest(std::string_view settings) {
  Sha256 sha;
  for (const Setting& each : Parse(settings)) {
    std::string entry(each.name);
    entry += kPartSeparator;
    entry += each.value;
    entry += kSettingSeparator;
    sha.Update(std::as_bytes(std::span(entry)));
  }
  const Digest digest = sha.Finish();
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < kDigestBytes; ++i) {
    const auto byte = std::to_integer<unsigned>(digest[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string DescribeDifferences(std::span<const std::string> settings) {
  std::vector<std::string_view> order;
  std::map<std::string_view, std::map<std::string_view, Holders>> by_name;
  for (size_t rank = 0; rank < settings.size(); ++rank) {
    for (const Setting& each : Parse(settings[rank])) {
      if (by_name.find(each.name) == by_name.end()) order.push_back(each.name);
      Holders& holders = by_name[each.name][each.value];
      holders.ranks.push_back(static_cast<int>(rank));
      const auto known = std::find(holders.sources.begin(), holders.sources.end(), each.source);
      if (known == holders.sources.end()) holders.sources.push_back(each.source);
    }
  }
  std::string text;
  for (const std::string_view name : order) {
    if (by_name[name].size() == 1) continue;
    if (!text.empty()) text += "; ";
    text += Describe(name, by_name[name]);
  }
  return text;
}

Status RefuseSettings(Store& store, const std::string& scope, int rank, int size,
                      std::string_view settings, Deadline deadline) {
  // This runs only after digests have differed, so the start of a job pays nothing for the texts.
  RABIT_RETURN_IF_ERROR(store.Set(scope + std::to_string(rank), settings));
  const Deadline end = std::min(deadline, After(kPatience));
  std::vector<std::string> of_ranks;
  std::vector<int> silent;
  for (int peer = 0; peer < size; ++peer) {
    // A rank that has died, or whose settings are equal, may be silent; what the others say is
    // worth an error all the same.
    Result<std::string> found = store.Get(scope + std::to_string(peer), end);
    if (!found.ok()) silent.push_back(peer);
    of_ranks.push_back(found.ok() ? *std::move(found) : std::string());
  }
  if (silent.empty()) {
    // The version counts the ranks that have read all.  Who cannot hear of the last of them knows
    // enough already.
    if (store.Set(scope + "read", "").ok()) {
      (void)store.Watch(scope + "read", static_cast<uint64_t>(size) - 1, end);
    }
  }
  std::string text = DescribeDifferences(of_ranks);
  if (text.empty()) text = "those of this rank are not those of another, in a way that neither can name";
  if (!silent.empty()) text += "; not told by: " + RankList(silent);
  return Mismatch("settings that must be equal on all ranks differ: " + text +
                  ". Set them alike on every rank; flags of rabitrun and its environment reach all");
}

}  // namespace rabit
