// The part of the C ABI by which a rank serves memory to others, and reads theirs.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "abi/connections.h"
#include "abi/guard.h"
#include "abi/option_map.h"
#include "include/rabit_abi.h"
#include "transport/parts/part_reader.h"
#include "transport/parts/part_server.h"

struct rabit_part_server {
  std::unique_ptr<rabit::PartServer> server;
};

struct rabit_part_reader {
  std::unique_ptr<rabit::PartReader> reader;
};

namespace rabit {
namespace {

std::vector<std::string> AddressesOf(std::string_view list) {
  std::vector<std::string> addresses;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    addresses.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return addresses;
}

}  // namespace
}  // namespace rabit

using namespace rabit;

int32_t rabit_part_server_start(const char* options, rabit_part_server** server, int32_t* port) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(options);
    RABIT_REQUIRE_POINTER(server);
    RABIT_REQUIRE_POINTER(port);
    *server = nullptr;
    RABIT_ASSIGN_OR_RETURN(
        const OptionMap given,
        ReadOptions(options, {{"address", "127.0.0.1"}, {"secret", ""}, {"rank", "0"}}));
    RABIT_ASSIGN_OR_RETURN(const Secret secret, Secret::FromHex(given.at("secret")));
    RABIT_ASSIGN_OR_RETURN(const int64_t rank, ToNumber(given, "rank"));
    RABIT_ASSIGN_OR_RETURN(
        std::unique_ptr<PartServer> started,
        PartServer::Start(ListenAddress(std::string(given.at("address"))), secret,
                          static_cast<int32_t>(rank)));
    const std::string bound = started->address();
    *port = std::atoi(bound.c_str() + bound.rfind(':') + 1);
    *server = new rabit_part_server{std::move(started)};
    return Status();
  });
}

void rabit_part_server_stop(rabit_part_server* server) { delete server; }

int32_t rabit_part_server_add(rabit_part_server* server, uint64_t part, const void* data,
                              size_t bytes) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(server);
    RABIT_REQUIRE_POINTER(data);
    server->server->Add(part, {static_cast<const std::byte*>(data), bytes});
    return Status();
  });
}

int32_t rabit_part_server_close(rabit_part_server* server, uint64_t part) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(server);
    return server->server->Close(part);
  });
}

int32_t rabit_part_server_open(rabit_part_server* server, uint64_t part, uint64_t version) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(server);
    return server->server->Open(part, version);
  });
}

int32_t rabit_part_reader_open(const char* options, rabit_part_reader** reader) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(options);
    RABIT_REQUIRE_POINTER(reader);
    *reader = nullptr;
    RABIT_ASSIGN_OR_RETURN(
        const OptionMap given,
        ReadOptions(options,
                    {{"addresses", ""}, {"secret", ""}, {"rank", "0"}, {"silence_ms", "3000"}}));
    RABIT_ASSIGN_OR_RETURN(const Secret secret, Secret::FromHex(given.at("secret")));
    RABIT_ASSIGN_OR_RETURN(const int64_t rank, ToNumber(given, "rank"));
    RABIT_ASSIGN_OR_RETURN(const int64_t silence_ms, ToNumber(given, "silence_ms"));
    *reader = new rabit_part_reader{std::make_unique<PartReader>(
        AddressesOf(given.at("addresses")), secret, static_cast<int32_t>(rank),
        std::chrono::milliseconds(silence_ms))};
    return Status();
  });
}

void rabit_part_reader_close(rabit_part_reader* reader) { delete reader; }

int32_t rabit_part_reader_read(rabit_part_reader* reader, const rabit_part_read* reads,
                               int32_t count, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(reader);
    RABIT_REQUIRE_POINTER(reads);
    std::vector<PartRead> wanted;
    for (int32_t i = 0; i < count; ++i) {
      const rabit_part_read& read = reads[i];
      wanted.push_back({read.rank,
                        read.part,
                        read.version,
                        {static_cast<std::byte*>(read.into), static_cast<size_t>(read.bytes)}});
    }
    return reader->reader->Read(wanted, DeadlineFor(timeout_ms));
  });
}
