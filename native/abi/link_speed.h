// LinkSpeed: what the system says of the link that carries an address.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rabit {

// Bytes per second of the interface with `address`, which may be a name; 0 where nobody knows, as of
// loopback and most virtual ones.  `sysfs`: the folder of the interfaces.
int64_t LinkSpeed(const std::string& address, std::string_view sysfs = "/sys/class/net");

}  // namespace rabit
