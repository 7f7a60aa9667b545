#include "abi/link_speed.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <fstream>
#include <memory>

namespace rabit {
namespace {

// The address alone, without the port; empty for families that have no interfaces.
std::string_view AddressOf(const sockaddr* address) {
  if (address == nullptr) return {};
  if (address->sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    return {reinterpret_cast<const char*>(&v4), sizeof v4};
  }
  if (address->sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    return {reinterpret_cast<const char*>(&v6), sizeof v6};
  }
  return {};
}

// Empty: no interface has it.
std::string InterfaceWith(const sockaddr* wanted) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, ::freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    const std::string_view theirs = AddressOf(each->ifa_addr);
    if (!theirs.empty() && theirs == AddressOf(wanted)) return each->ifa_name;
  }
  return {};
}

}  // namespace

int64_t LinkSpeed(const std::string& address, std::string_view sysfs) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) return 0;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> held(found, ::freeaddrinfo);
  const std::string interface = InterfaceWith(found->ai_addr);
  if (interface.empty()) return 0;
  int64_t megabits = 0;  // stays where the file is missing, and is -1 where the driver does not know
  std::ifstream(std::string(sysfs) + "/" + interface + "/speed") >> megabits;
  return megabits > 0 ? megabits * 125'000 : 0;
}

}  // namespace rabit
