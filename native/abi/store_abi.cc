// The part of the C ABI that launchers use: the board through which ranks meet, and its clients.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "abi/guard.h"
#include "abi/option_map.h"
#include "include/rabit_abi.h"
#include "rendezvous/store_server.h"
#include "rendezvous/tcp_store.h"

struct rabit_store {
  std::unique_ptr<rabit::StoreServer> server;
};

struct rabit_store_client {
  std::unique_ptr<rabit::TcpStore> store;
};

namespace rabit {
namespace {

// What the caller's buffer takes.
void CopyValue(const std::string& value, void* to, size_t capacity, size_t* bytes) {
  if (to != nullptr) std::memcpy(to, value.data(), std::min(capacity, value.size()));
  *bytes = value.size();
}

}  // namespace
}  // namespace rabit

using namespace rabit;

int32_t rabit_store_start(const char* options, rabit_store** store, int32_t* port) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(options);
    RABIT_REQUIRE_POINTER(store);
    RABIT_REQUIRE_POINTER(port);
    *store = nullptr;
    RABIT_ASSIGN_OR_RETURN(
        const OptionMap given,
        ReadOptions(options, {{"address", "127.0.0.1"}, {"port", "0"}, {"secret", ""}}));
    RABIT_ASSIGN_OR_RETURN(const Secret secret, Secret::FromHex(given.at("secret")));
    std::string address(given.at("address"));
    const bool is_bare_v6 = address.find(':') != std::string::npos && address.front() != '[';
    if (is_bare_v6) address = "[" + address + "]";
    RABIT_ASSIGN_OR_RETURN(
        std::unique_ptr<StoreServer> server,
        StoreServer::Start(address + ":" + std::string(given.at("port")), secret));
    const std::string bound = server->address();
    *port = std::atoi(bound.c_str() + bound.rfind(':') + 1);
    *store = new rabit_store{std::move(server)};
    return Status();
  });
}

void rabit_store_stop(rabit_store* store) { delete store; }

int32_t rabit_store_connect(const char* options, rabit_store_client** client) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(options);
    RABIT_REQUIRE_POINTER(client);
    *client = nullptr;
    RABIT_ASSIGN_OR_RETURN(
        const OptionMap given,
        ReadOptions(options,
                    {{"address", ""}, {"secret", ""}, {"rank", "-1"}, {"timeout_ms", "60000"}}));
    RABIT_ASSIGN_OR_RETURN(const Secret secret, Secret::FromHex(given.at("secret")));
    RABIT_ASSIGN_OR_RETURN(const int64_t rank, ToNumber(given, "rank"));
    RABIT_ASSIGN_OR_RETURN(const int64_t timeout_ms, ToNumber(given, "timeout_ms"));
    RABIT_ASSIGN_OR_RETURN(
        std::unique_ptr<TcpStore> store,
        TcpStore::Connect(given.at("address"), secret, static_cast<int32_t>(rank),
                          DeadlineFor(timeout_ms)));
    *client = new rabit_store_client{std::move(store)};
    return Status();
  });
}

void rabit_store_disconnect(rabit_store_client* client) { delete client; }

int32_t rabit_store_set(rabit_store_client* client, const char* key, const void* value,
                        size_t bytes) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(client);
    RABIT_REQUIRE_POINTER(key);
    RABIT_REQUIRE_POINTER(value);
    return client->store->Set(key, {static_cast<const char*>(value), bytes});
  });
}

int32_t rabit_store_watch(rabit_store_client* client, const char* key, int64_t timeout_ms,
                          void* value, size_t capacity, size_t* bytes, uint64_t* version) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(client);
    RABIT_REQUIRE_POINTER(key);
    RABIT_REQUIRE_POINTER(bytes);
    RABIT_REQUIRE_POINTER(version);
    RABIT_ASSIGN_OR_RETURN(const Versioned found,
                           client->store->Watch(key, *version, DeadlineFor(timeout_ms)));
    CopyValue(found.value, value, capacity, bytes);
    *version = found.version;
    return Status();
  });
}

int32_t rabit_store_compare_and_set(rabit_store_client* client, const char* key, const void* value,
                                    size_t bytes, void* held, size_t capacity, size_t* held_bytes,
                                    uint64_t* version, int32_t* is_mine) {
  return Guard([&]() -> Status {
    RABIT_REQUIRE_POINTER(client);
    RABIT_REQUIRE_POINTER(key);
    RABIT_REQUIRE_POINTER(value);
    RABIT_REQUIRE_POINTER(held_bytes);
    RABIT_REQUIRE_POINTER(version);
    RABIT_REQUIRE_POINTER(is_mine);
    RABIT_ASSIGN_OR_RETURN(const Swap swap,
                           client->store->CompareAndSet(
                               key, *version, {static_cast<const char*>(value), bytes}));
    CopyValue(swap.held.value, held, capacity, held_bytes);
    *version = swap.held.version;
    *is_mine = swap.is_mine ? 1 : 0;
    return Status();
  });
}
