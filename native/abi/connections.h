// Connections: how the ranks of one job find and reach each other.
#pragma once

#include <memory>
#include <string>

#include "abi/options.h"
#include "base/group.h"
#include "base/result.h"
#include "membership/pool.h"
#include "rendezvous/start_watch.h"
#include "transport/channel.h"
#include "transport/rank_tree.h"
#include "transport/tcp/tcp_options.h"
#include "transport/transport.h"

namespace rabit {

// What one engine stands on.  The channel and the transport go to the controller and the backend;
// the pool must outlive both.
struct Connections {
  std::shared_ptr<ConnectionPool> pool;  // null when there is one rank, and no pool of the caller
  std::unique_ptr<PoolTurn> turn;        // null unless the pool is the caller's
  std::unique_ptr<StartWatch> watch;     // null when there is one rank
  std::unique_ptr<MemberBook> book;      // null when there is one rank
  Topology topology;
  HostCores cores;                       // of this rank's host
  int spin_us = 0;                       // that a waiter may spin before it sleeps
  RankTree tree = RankTree::Star(1);     // of the channel
  std::unique_ptr<Channel> channel;      // null when there is one rank
  std::unique_ptr<Transport> transport;  // null when there is one rank
  bool shares_memory = false;            // it reaches the ranks of this host through shared memory
  std::shared_ptr<Transport> shm;        // that part of it, if it has another; else null

  // The engine has ended, and may be looked at for long: what it has from a pool of the caller goes
  // back at once, for the next one.
  void Leave() {
    if (turn == nullptr) return;
    book.reset();
    watch.reset();
    turn.reset();
  }
};

// Waits until all ranks are connected, at most connect_timeout_ms.  Whoever fails after this tells
// `watch`, while others may still wait.
//
// pool: of a process that has one engine after the other, each with its own options.members; null:
// the connections end with the engine.
Result<Connections> ConnectRanks(const Options& options,
                                 std::shared_ptr<ConnectionPool> pool = nullptr);

// What options.member and the rest say about the process, without an engine.
Result<std::shared_ptr<ConnectionPool>> OpenPool(const Options& options);

// `beats`: see TcpOptions::SetTimes.
TcpOptions TcpOptionsFrom(const Options& options, bool beats);

// Where a listener is opened: any port of this address.
std::string ListenAddress(const std::string& bind_address);
// What peers dial: `bound`, or each address of a list of them with its port, with commas between.
std::string PublishedAddress(const std::string& bind_address, const std::string& bound);

}  // namespace rabit
