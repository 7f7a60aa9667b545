#include "abi/connections.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "abi/hosts.h"
#include "base/log.h"
#include "base/measured.h"
#include "base/processors.h"
#include "rendezvous/gathering.h"
#include "transport/connect.h"
#include "transport/routed_transport.h"
#include "transport/shared_transport.h"
#include "transport/shm/shm_channel.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_channel.h"
#include "transport/tcp/tcp_transport.h"

namespace rabit {
namespace {

std::string Key(const Options& options, const char* what, int rank) {
  return std::to_string(options.epoch) + "/" + what + "/" + std::to_string(rank);
}

void Warn(const Options& options, const std::string& what) {
  Logger(options.shown_from(), options.rank)
      .Warning("rank " + std::to_string(options.rank) + " " + what);
}

Status AddContext(const Options& options, const char* doing, const Status& status) {
  return Status(status.code(), "rank " + std::to_string(options.rank) + " of " +
                                   std::to_string(options.size) + ", while " + doing + ": " +
                                   status.message())
      .WithCulprit(status.culprit());
}

// Of waits for other threads of the rank, which has a caller, an engine thread and lanes: spinning
// pays only if the thread that is waited for has a core of its own.
int SpinFor(const Options& options, const HostCores& cores) {
  if (options.spin_us >= 0) return options.spin_us;
  return cores.each >= 2 ? 50 : 0;
}

ShmOptions ShmOptionsFrom(const Options& options) {
  ShmOptions shm;
  shm.spin_us = options.spin_us;
  shm.single_copy = options.shm_single_copy ? SingleCopy::kAuto : SingleCopy::kOff;
  shm.is_checked = options.shm_checksum;
  shm.ring_bytes = static_cast<uint32_t>(options.shm_ring_bytes / 4096 * 4096);
  return shm;
}

// The memory of this rank, if all ranks of the host have theirs and want to use it; else they all
// do without, because a pair of which only one has memory would not know how to talk.
Result<std::optional<Inbox>> ReserveShmOfHost(const Options& options,
                                              const ConnectContext& context) {
  if (options.transport == "tcp") return std::optional<Inbox>();
  std::vector<int> local;
  for (int rank = 0; rank < options.size; ++rank)
    if (context.topology.SameHost(rank, options.rank)) local.push_back(rank);
  if (local.size() == 1 && options.transport == "auto") return std::optional<Inbox>();
  Result<Inbox> inbox = ReserveShm(context, ShmOptionsFrom(options));
  if (!inbox.ok() && options.transport == "shm") return inbox.status();
  const std::string mine = inbox.ok() ? "yes" : inbox.status().message();
  RABIT_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                         GatherWords(context.store, Key(options, "memory", local.front()) + "/",
                                     local, options.rank, mine, context.deadline));
  for (size_t i = 0; i < local.size(); ++i) {
    if (words[i] == "yes" || !inbox.ok()) continue;
    if (options.transport == "shm") {
      return ResourceExhausted("rank " + std::to_string(local[i]) +
                               " has no shared memory: " + words[i])
          .WithCulprit(local[i]);
    }
    return std::optional<Inbox>();
  }
  if (inbox.ok()) return std::optional<Inbox>(*std::move(inbox));
  Warn(options,
       "has no shared memory, so that the ranks of its host use TCP: " + inbox.status().message());
  return std::optional<Inbox>();
}

// Neighbours of one host talk through shared memory, the others by TCP, which also tells of deaths.
Result<std::unique_ptr<Channel>> ConnectChannel(const Options& options,
                                                const ConnectContext& context, const RankTree& tree,
                                                const HostCores& cores, bool has_memory) {
  const std::vector<int> neighbours = tree.Neighbours(options.rank);
  const bool has_local = std::any_of(neighbours.begin(), neighbours.end(), [&](int peer) {
    return context.topology.SameHost(peer, options.rank);
  });
  const bool shares_memory = has_local && has_memory;
  ChannelOptions tcp;
  tcp.heartbeat_timeout = std::chrono::milliseconds(options.heartbeat_timeout_ms);
  if (!shares_memory) tcp.spin = SocketSpinTimesFor(options.spin_us, cores);
  RABIT_ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel, ConnectTcpChannel(context, tree, tcp));
  if (!shares_memory) return channel;
  ShmChannelOptions shm;
  shm.spin = SpinTimesFor(options.spin_us, cores);
  return ConnectShmChannel(context, tree, std::move(channel), shm);
}

// Sets what of `made` moves data.
Status ConnectTransports(const Options& options, const ConnectContext& context,
                         std::optional<Inbox> inbox, Connections& made) {
  const HostCores& cores = made.cores;
  const int local_size = cores.ranks;
  made.shares_memory = inbox.has_value();
  const bool wants_tcp = !made.shares_memory || local_size < options.size;
  if (options.transport == "shm" && local_size < options.size) {
    return Unsupported("transport shm reaches only the " + std::to_string(local_size) +
                       " ranks of this host, but the job has " + std::to_string(options.size) +
                       "; use transport auto");
  }
  std::vector<std::unique_ptr<Transport>> parts;
  if (made.shares_memory) {
    RABIT_ASSIGN_OR_RETURN(
        auto transport, ConnectShmTransport(context, ShmOptionsFrom(options), *std::move(inbox)));
    if (!wants_tcp) {
      made.transport = std::move(transport);
      return Status();
    }
    made.shm = std::move(transport);
    parts.push_back(std::make_unique<SharedTransport>(made.shm));
  }
  TcpOptions tcp = TcpOptionsFrom(options, false);
  // Of several interfaces each carries its part of a long message at the same time.
  const auto interfaces = 1 + static_cast<int>(std::ranges::count(options.bind_address, ','));
  tcp.connections_per_stream = std::max(tcp.connections_per_stream, interfaces);
  if (interfaces > 1) tcp.stripe_bytes_min = static_cast<size_t>(kInterfaceStripeBytesMin);
  tcp.spin = SocketSpinTimesFor(options.spin_us, cores);
  if (cores.are_shared()) tcp.spin_bytes_max = static_cast<size_t>(kSharedCoreSpinBytesMax);
  // Whom shared memory reaches needs no connection.
  for (int peer = 0; peer < options.size && !parts.empty(); ++peer) {
    if (!context.topology.SameHost(options.rank, peer)) tcp.peers.push_back(peer);
  }
  RABIT_ASSIGN_OR_RETURN(auto transport, ConnectTcpTransport(context, tcp));
  if (parts.empty()) {
    made.transport = std::move(transport);
    return Status();
  }
  parts.push_back(std::move(transport));
  std::vector<int> route;
  for (int peer = 0; peer < options.size; ++peer) {
    route.push_back(context.topology.SameHost(options.rank, peer) ? 0 : 1);
  }
  made.transport = std::make_unique<RoutedTransport>(std::move(parts), std::move(route));
  return Status();
}

RankTree ControlTree(const Options& options, const Topology& topology) {
  const bool is_tree = options.coordination == "tree" ||
                       (options.coordination == "auto" && options.size >= kTreeRanksMin);
  if (!is_tree) return RankTree::Star(options.size);
  return RankTree::Over(topology, options.coordination_fan_out);
}

Connections ConnectAlone(const Options& options) {
  Connections alone;
  alone.topology = Topology::Alike({0}, FindProcessors());
  alone.cores = alone.topology.CoresAt(0);
  alone.spin_us = SpinFor(options, alone.cores);
  return alone;
}

// "::1" needs brackets before a port can follow.
std::string WithPort(const std::string& address, const std::string& port) {
  const bool is_bare_v6 = address.find(':') != std::string::npos && address.front() != '[';
  return (is_bare_v6 ? "[" + address + "]" : address) + port;
}

// Both ends of a link cut messages alike.
Status CheckInterfaces(int rank, const std::vector<std::string>& addresses) {
  const auto interfaces_of = [&](size_t of_rank) {
    return 1 + std::ranges::count(addresses[of_rank], ',');
  };
  const auto mine = interfaces_of(static_cast<size_t>(rank));
  for (size_t other = 0; other < addresses.size(); ++other) {
    if (interfaces_of(other) == mine) continue;
    return Mismatch("rank " + std::to_string(rank) + " uses " + std::to_string(mine) +
                    " network interfaces and rank " + std::to_string(other) + " uses " +
                    std::to_string(interfaces_of(other)) +
                    "; name as many on every host (RABIT_INTERFACES)")
        .WithCulprit(static_cast<int>(other));
  }
  return Status();
}

// Everything but the store.
Status ConnectThrough(const Options& options, const Members& members, Deadline deadline,
                      Connections& made) {
  const auto epoch = static_cast<uint64_t>(options.epoch);
  StartWatch& watch = *made.watch;
  MemberBook& book = *made.book;
  RABIT_RETURN_IF_ERROR(watch.Join(deadline));
  const Status listens = made.pool->Listen(ListenAddress(options.bind_address), epoch);
  if (!listens.ok()) return AddContext(options, "opening its port", listens);
  const std::string address =
      PublishedAddress(options.bind_address, made.pool->listener().address());
  // For those that read nothing else of a rank: servers, ranks that sum for others, and members
  // that look for whom they still reach (rabit/rendezvous/reach.py).
  RABIT_RETURN_IF_ERROR(
      Tell(options, members, book, "address", std::string(AddressOfLink(address, 0))));
  Result<Hosts> hosts = MeetHosts(options, members, book, address, deadline);
  if (!hosts.ok()) return AddContext(options, "looking for all ranks", hosts.status());
  const Status are_equal = CheckInterfaces(options.rank, hosts->addresses);
  if (!are_equal.ok()) return AddContext(options, "looking for all ranks", are_equal);
  made.topology = std::move(hosts->topology);
  made.cores = made.topology.CoresAt(options.rank);
  made.spin_us = SpinFor(options, made.cores);

  const ConnectContext context{options.rank,
                               options.size,
                               epoch,
                               book,
                               made.pool->listener(),
                               made.pool->secret(),
                               made.topology,
                               options.streams(),
                               deadline,
                               &watch,
                               members,
                               made.turn == nullptr ? nullptr : &made.pool->kept(),
                               hosts->addresses};
  made.tree = ControlTree(options, made.topology);
  Result<std::optional<Inbox>> inbox = ReserveShmOfHost(options, context);
  if (!inbox.ok()) return AddContext(options, "taking shared memory", inbox.status());
  Result<std::unique_ptr<Channel>> channel =
      ConnectChannel(options, context, made.tree, made.cores, inbox->has_value());
  if (!channel.ok()) return AddContext(options, "making the control channel", channel.status());
  made.channel = std::move(channel).value();
  const Status connected = ConnectTransports(options, context, *std::move(inbox), made);
  if (!connected.ok()) return AddContext(options, "connecting to its peers", connected);
  return Status();
}

}  // namespace

TcpOptions TcpOptionsFrom(const Options& options, bool beats) {
  TcpOptions tcp;
  tcp.SetTimes(std::chrono::milliseconds(options.heartbeat_timeout_ms), beats);
  tcp.connections_per_stream = options.tcp_connections;
  tcp.payload_checks = options.tcp_checksum == "on"    ? PayloadChecks::kOn
                       : options.tcp_checksum == "off" ? PayloadChecks::kOff
                                                       : PayloadChecks::kAuto;
  return tcp;
}

std::string ListenAddress(const std::string& bind_address) {
  if (bind_address.find(',') != std::string::npos) {
    return bind_address.find(':') != std::string::npos ? "[::]:0" : "0.0.0.0:0";
  }
  return WithPort(bind_address.empty() ? "127.0.0.1" : bind_address, ":0");
}

std::string PublishedAddress(const std::string& bind_address, const std::string& bound) {
  if (bind_address.find(',') == std::string::npos) return bound;
  const std::string port = bound.substr(bound.rfind(':'));
  std::string published;
  for (size_t at = 0; at <= bind_address.size();) {
    const size_t end = std::min(bind_address.find(',', at), bind_address.size());
    published += (at > 0 ? "," : "") + WithPort(bind_address.substr(at, end - at), port);
    at = end + 1;
  }
  return published;
}

Result<std::shared_ptr<ConnectionPool>> OpenPool(const Options& options) {
  const Deadline deadline = After(std::chrono::milliseconds(options.connect_timeout_ms));
  RABIT_ASSIGN_OR_RETURN(const Secret secret, Secret::FromHex(options.secret));
  auto pool = std::make_shared<ConnectionPool>(secret, options.member);
  RABIT_RETURN_IF_ERROR(pool->Meet(options.store, deadline));
  // Of no epoch yet: those that dial this process before its first engine wait.
  RABIT_RETURN_IF_ERROR(pool->Listen(ListenAddress(options.bind_address), 0));
  pool->listener().SetEpoch(0);
  return pool;
}

Result<Connections> ConnectRanks(const Options& options, std::shared_ptr<ConnectionPool> pool) {
  Connections made;
  Members members;
  if (pool != nullptr) {
    RABIT_ASSIGN_OR_RETURN(members.of_rank, ParseMembers(options.members));
    RABIT_RETURN_IF_ERROR(pool->Begin(static_cast<uint64_t>(options.epoch), members.of_rank));
    made.turn = std::make_unique<PoolTurn>(*pool);
  }
  if (options.size == 1) {
    Connections alone = ConnectAlone(options);
    alone.pool = std::move(pool);
    alone.turn = std::move(made.turn);
    return alone;
  }
  const Deadline deadline = After(std::chrono::milliseconds(options.connect_timeout_ms));
  if (pool == nullptr) {
    RABIT_ASSIGN_OR_RETURN(const Secret secret, Secret::FromHex(options.secret));
    pool = std::make_shared<ConnectionPool>(secret, options.rank);
  }
  made.pool = std::move(pool);
  const Status met = made.pool->Meet(options.store, deadline);
  if (!met.ok()) return AddContext(options, "connecting to the store", met);
  made.watch = std::make_unique<StartWatch>(made.pool->store(), options.epoch, options.rank);
  made.book = std::make_unique<MemberBook>(*made.watch, made.pool->facts());
  const Status connected = ConnectThrough(options, members, deadline, made);
  if (!connected.ok()) return made.watch->Fail(connected);
  return made;
}

}  // namespace rabit
