// Connections: how the ranks of one job find and reach each other.
#pragma once

#include <memory>

#include "abi/options.h"
#include "base/group.h"
#include "base/result.h"
#include "rendezvous/listener.h"
#include "rendezvous/start_watch.h"
#include "rendezvous/tcp_store.h"
#include "transport/channel.h"
#include "transport/rank_tree.h"
#include "transport/transport.h"

namespace rabit {

// What one engine stands on.  The channel and the transport go to the controller and the backend;
// the listener and the store must outlive both.
struct Connections {
  std::unique_ptr<TcpStore> store;     // null when there is one rank
  std::unique_ptr<StartWatch> watch;   // null when there is one rank
  std::unique_ptr<Listener> listener;  // null when there is one rank
  Topology topology;
  HostCores cores;                       // of this rank's host
  int spin_us = 0;                       // that a waiter may spin before it sleeps
  RankTree tree = RankTree::Star(1);     // of the channel
  std::unique_ptr<Channel> channel;      // null when there is one rank
  std::unique_ptr<Transport> transport;  // null when there is one rank
  bool shares_memory = false;            // it reaches the ranks of this host through shared memory
  std::shared_ptr<Transport> shm;        // that part of it, if it has another; else null
};

// Waits until all ranks are connected, at most connect_timeout_ms.  Whoever fails after this tells
// `watch`, while others may still wait.
Result<Connections> ConnectRanks(const Options& options);

}  // namespace rabit
