// What every transport needs to find its peers.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/group.h"
#include "rendezvous/listener.h"
#include "rendezvous/start_watch.h"
#include "rendezvous/store.h"

namespace rabit {

struct ConnectContext {
  int rank = 0;
  int size = 1;
  uint64_t epoch = 0;        // of this engine; keys in the store start with it
  Store& store;
  Listener& listener;        // of this rank; its address is in the store under "<epoch>/address/<rank>"
  const Secret& secret;
  const Topology& topology;
  int streams = 2;           // one per lane, and one for ordered calls
  Deadline deadline;
  StartWatch* watch = nullptr;  // null: nobody tells of ranks that fail meanwhile

  // Of a rank that has failed.  Whoever waits asks this a few times a second.
  Status Look() const { return watch == nullptr ? Status() : watch->Look(); }
};

// Between two looks of a wait that something else ends.
inline constexpr std::chrono::milliseconds kStartLookInterval{100};

}  // namespace rabit
