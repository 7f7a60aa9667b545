// SummationServer: sums the tensors of the workers of one job.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "backend/ps/parameter_store.h"
#include "backend/ps/place_copies.h"
#include "base/encoded_sum.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/transport.h"

namespace rabit {

// Serves the group of all workers, and those that rank 0 tells of; each has a thread for every
// stream, until its first member says that it has ended.  Holds no state beyond the chunks that are
// under way, and the parameters that workers update. With replicas a server also has a thread for
// the place of every other one: the server behind keeps copies, and the others wait until it is
// their turn (place_copies.h).
class SummationServer {
 public:
  // Ranks 0 … workers - 1 of `endpoints` are the workers, of which there are at least two, and the
  // servers come behind.  With `takes_updates` a further stream, the last one, is for what each
  // worker pushes by itself.  `replicas`: servers that have each sum, 1 or 2.  `adder`: of
  // encodings, outlives the server; null: it adds none.  `silence`: of other servers; each is told
  // of once.
  SummationServer(std::unique_ptr<Transport> endpoints, int workers, int streams,
                  bool takes_updates = false, int replicas = 1,
                  const EncodingAdder* adder = nullptr, const SilenceLimit& silence = {});

  // Blocks until a worker leaves, for whatever reason, and returns that.  Once.
  Status Serve();

  uint64_t bytes_summed() const { return bytes_summed_.load(); }

 private:
  // A loop, whose thread has nothing left to do when it has ended.
  struct Worker {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> has_ended;
  };

  Status Start(GroupId group, const std::vector<int>& members);
  Status StartLoops(GroupId group, const std::vector<int>& members, int stream);
  Status StartLoop(const PlaceCrew& crew);
  Status ServeAll();
  void JoinEnded();
  Status AddGroups();
  void Fail(const Status& why);
  void TellOnce(int rank, const std::function<void(int rank)>& tell);

  const std::unique_ptr<Transport> endpoints_;
  const int workers_;
  const int streams_;  // of sums
  const bool takes_updates_;
  const int replicas_;
  const EncodingAdder* const adder_;
  const SilenceLimit silence_;
  std::vector<std::unique_ptr<ParameterStore>> parameters_;  // by place; null: never served here
  std::atomic<uint64_t> bytes_summed_{0};
  std::vector<Worker> loops_;  // of whoever calls Serve
  Mutex mutex_;
  Status failure_ RABIT_GUARDED_BY(mutex_);
  std::set<int> silent_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit
