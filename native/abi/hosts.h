// Hosts: what the ranks of a job learn about each other before they connect.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "abi/options.h"
#include "base/group.h"
#include "base/result.h"
#include "membership/pool.h"
#include "transport/connect.h"

namespace rabit {

// Equal for the processes of one host: option host_key, or what the system says.
std::string HostKeyOf(const Options& options);

// Publishes what holds as long as the process does, or its one engine.
Status Tell(const Options& options, const Members& members, Store& store, std::string_view what,
            const std::string& value);

struct Hosts {
  Topology topology;
  std::vector<std::string> addresses;  // of the listeners, by rank
};

// Publishes what this rank is, and learns it of all others.  Blocks; names the rank that has not
// appeared at the deadline, or the settings in which ranks differ.
Result<Hosts> MeetHosts(const Options& options, const Members& members, MemberBook& book,
                        const std::string& address, Deadline deadline);

}  // namespace rabit
