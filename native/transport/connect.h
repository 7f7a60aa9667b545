// What every transport needs to find its peers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/group.h"
#include "rendezvous/listener.h"
#include "rendezvous/start_watch.h"
#include "rendezvous/store.h"
#include "transport/link_keeper.h"

namespace rabit {

// Which process has which rank.  A member keeps its number while engines, and with them ranks, come
// and go; it is what greets and what is expected at the other end of a connection.
struct Members {
  std::vector<int> of_rank = {};  // empty: a rank is its own member

  bool are_ranks() const { return of_rank.empty(); }
  int Of(int rank) const { return are_ranks() ? rank : of_rank[static_cast<size_t>(rank)]; }
  // -1: it has none.
  int RankOf(int member) const {
    if (are_ranks()) return member;
    const auto found = std::find(of_rank.begin(), of_rank.end(), member);
    return found == of_rank.end() ? -1 : static_cast<int>(found - of_rank.begin());
  }
  // Of what a process tells about itself: once for ever, or for the one engine that it has.
  static constexpr std::string_view kKeyStart = "member/";
  std::string KeyOf(uint64_t epoch, std::string_view what, int rank) const {
    return (are_ranks() ? std::to_string(epoch) + "/" : std::string(kKeyStart))
        .append(what)
        .append("/")
        .append(std::to_string(Of(rank)));
  }
};

struct ConnectContext {
  int rank = 0;
  int size = 1;
  uint64_t epoch = 0;  // of this engine
  Store& store;
  Listener& listener;  // of this rank; its address is in the store under KeyOf("address", rank)
  const Secret& secret;
  const Topology& topology;
  int streams = 2;  // one per lane, and one for ordered calls
  Deadline deadline;
  StartWatch* watch = nullptr;  // null: nobody tells of ranks that fail meanwhile
  Members members = {};
  LinkKeeper* keeper =
      nullptr;  // of the connections between members; null: they end with the engine
  // Of the listeners, by rank, several of one with commas between; empty: the store has them.
  std::span<const std::string> addresses = {};

  // Where a rank publishes what holds as long as its listener.
  std::string KeyOf(std::string_view what, int of_rank) const {
    return members.KeyOf(epoch, what, of_rank);
  }

  // Of a rank that has failed.  Whoever waits asks this a few times a second.
  Status Look() const { return watch == nullptr ? Status() : watch->Look(); }
};

// Of the addresses of a rank, with commas between, that which its link `index` goes to: a host with
// several interfaces has a link of each pair of ranks on each of them in turn.
inline std::string_view AddressOfLink(std::string_view addresses, int index) {
  const auto count = static_cast<int>(std::count(addresses.begin(), addresses.end(), ',')) + 1;
  for (int skip = index % count; skip > 0; --skip) {
    addresses.remove_prefix(addresses.find(',') + 1);
  }
  return addresses.substr(0, addresses.find(','));
}

// Between two looks of a wait that something else ends.
inline constexpr std::chrono::milliseconds kStartLookInterval{100};

}  // namespace rabit
