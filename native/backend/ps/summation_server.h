// SummationServer: sums the tensors of the workers of one job.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "backend/ps/parameter_store.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/transport.h"

namespace rabit {

// Serves the group of all workers, and those that rank 0 tells of; each has a thread for every
// stream.  Holds no state beyond the chunks that are under way, and the parameters that workers update.
class SummationServer {
 public:
  // Ranks 0 … workers - 1 of `endpoints` are the workers, of which there are at least two.  With
  // `takes_updates` a further stream, the last one, is for what each worker pushes by itself.
  SummationServer(std::unique_ptr<Transport> endpoints, int workers, int streams,
                  bool takes_updates = false);

  // Blocks until a worker leaves, for whatever reason, and returns that.  Once.
  Status Serve();

  uint64_t bytes_summed() const { return bytes_summed_.load(); }

 private:
  void Start(GroupId group, const std::vector<int>& members);
  void StartLoop(GroupId group, const std::vector<int>& members, int stream);
  Status AddGroups();
  void Fail(const Status& why);

  const std::unique_ptr<Transport> endpoints_;
  const int workers_;
  const int streams_;  // of sums
  const bool takes_updates_;
  ParameterStore parameters_;
  std::atomic<uint64_t> bytes_summed_{0};
  std::vector<std::thread> threads_;  // of whoever calls Serve
  Mutex mutex_;
  Status failure_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit
