// ServerThreads: summation servers as threads of one process.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "backend/ps/ps_backend.h"
#include "backend/ps/summation_server.h"
#include "testing/inproc_transport.h"

namespace rabit::testing {

// Of servers with the numbers from 0 on.
inline std::vector<ServerName> NodeNames(int servers) {
  std::vector<ServerName> names;
  for (int server = 0; server < servers; ++server) names.push_back({server, "node"});
  return names;
}

// Serves until the workers' transports are gone; destroy it after them.
class ServerThreads {
 public:
  // The servers are the last ranks of `fabric`.
  ServerThreads(InprocFabric& fabric, int workers, int servers, int streams,
                bool takes_updates = false, const EncodingAdder* adder = nullptr)
      : ends_(static_cast<size_t>(servers)) {
    for (int server = 0; server < servers; ++server) {
      servers_.push_back(std::make_unique<SummationServer>(
          fabric.Connect(workers + server), workers, streams, takes_updates, 1, adder));
      threads_.emplace_back(
          [served = servers_.back().get(), end = &ends_[static_cast<size_t>(server)]] {
            *end = served->Serve();
          });
    }
  }
  ~ServerThreads() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  ServerThreads(const ServerThreads&) = delete;
  ServerThreads& operator=(const ServerThreads&) = delete;

  // Of a server that has ended, or ends soon.
  Status EndOf(int server) {
    threads_[static_cast<size_t>(server)].join();
    return ends_[static_cast<size_t>(server)];
  }

  const SummationServer& operator[](int server) const {
    return *servers_[static_cast<size_t>(server)];
  }

 private:
  std::vector<std::unique_ptr<SummationServer>> servers_;
  std::vector<Status> ends_;
  std::vector<std::thread> threads_;
};

}  // namespace rabit::testing
