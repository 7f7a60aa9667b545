// TransportCounters: what has passed between this rank and its peers, and what was repaired.
#pragma once

#include <cstdint>

#include "base/json_writer.h"

namespace rabit {

struct TransportCounters {
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t frames_corrupt = 0;  // found by checksum and sent again
  uint64_t frames_resent = 0;
  uint64_t connections_restored = 0;
  uint64_t frames_late = 0;  // of an earlier epoch, and dropped

  // What was repaired, as members of an object.
  void WriteRepairs(JsonWriter& json) const {
    json.Member("frames_corrupt", frames_corrupt).Member("frames_resent", frames_resent);
    json.Member("connections_restored", connections_restored);
    json.Member("frames_late", frames_late);
  }
};

}  // namespace rabit
