// Jobs on the emulated device, whose ranks are threads, in each way in which tensors there travel.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/hierarchical/hierarchical_backend.h"
#include "engine/engine.h"
#include "testing/emulated_driver.h"
#include "testing/emulated_nccl.h"
#include "testing/engine_job.h"
#include "testing/memory_store.h"

namespace rabit::testing {

enum class DeviceWay { kStaged, kNccl, kHierarchical };

inline constexpr DeviceWay kBothWays[] = {DeviceWay::kStaged, DeviceWay::kNccl};
inline constexpr DeviceWay kEveryWay[] = {DeviceWay::kStaged, DeviceWay::kNccl,
                                          DeviceWay::kHierarchical};

inline std::string_view Name(DeviceWay way) {
  if (way == DeviceWay::kHierarchical) return "hierarchical";
  return way == DeviceWay::kNccl ? "nccl" : "staged";
}

// Rank r is on device r, of as many as there are ranks; where hosts count, even and odd ranks are
// on one each.  What it has taken is given back in the end, and nothing was touched that should not
// be.
class DeviceJob {
 public:
  DeviceJob(DeviceWay way, int size, JobOptions options = {}) {
    emulation().rabit_emulated_devices(std::max(size, 2));
    options.open_driver = [] { return LoadCudaDriver(RABIT_TEST_CUDA); };
    if (way != DeviceWay::kStaged) AddNccl(options);
    if (way == DeviceWay::kHierarchical) AddHierarchy(size, options);
    job_ = std::make_unique<TestJob>(size, std::move(options));
  }
  DeviceJob(const DeviceJob&) = delete;
  ~DeviceJob() {
    job_.reset();
    if (may_leave_behind_) return;
    const emulated_nccl::Counts nccl = nccl_emulation().counts();
    EXPECT_EQ(nccl.communicators, nccl_.communicators);
    EXPECT_EQ(nccl.violations, nccl_.violations);
    const emulated_cuda::Counts cuda = emulation().counts();
    EXPECT_EQ(cuda.violations, cuda_.violations);
    EXPECT_EQ(cuda.memory, cuda_.memory);
    EXPECT_EQ(cuda.pinned, cuda_.pinned);
    EXPECT_EQ(cuda.events, cuda_.events);
  }

  // Runs `body(engine, rank)` on every rank, and ends the engines.
  void Run(const std::function<void(Engine&, int)>& body) {
    const uint64_t before = copies();
    job_->Run(body);
    made_ = copies() - before;
  }
  std::unique_ptr<Engine> Start(int rank) { return job_->Start(rank); }
  // A driver that has broken gives nothing back.
  void MayLeaveBehind() { may_leave_behind_ = true; }
  // Copies to the host that Run has made.
  uint64_t copies_to_host() const { return made_; }

 private:
  static uint64_t copies() { return emulation().rabit_emulated_calls("cuMemcpyDtoHAsync_v2"); }

  static void AddNccl(JobOptions& options) {
    auto store = std::make_shared<MemoryStore>();
    options.ground = store;
    options.has_nccl = true;
    options.more_backends = [store](int rank) {
      std::vector<std::unique_ptr<Backend>> backends;
      backends.push_back(std::make_unique<NcclBackend>(OpenEmulatedNccl(), store.get(),
                                                       NcclOptions{.rank = rank, .key = "job"}));
      return backends;
    };
  }

  static void AddHierarchy(int size, JobOptions& options) {
    for (int rank = 0; rank < size; ++rank) options.host_of.push_back(rank % 2);
    options.hierarchy = [host_of = options.host_of](Backend& inside, Backend& between) {
      return std::make_unique<HierarchicalBackend>(
          "nccl.hierarchical", HierarchyParts{inside, between, {host_of}, LinkModel{}, 1 << 10});
    };
  }

  const emulated_nccl::Counts nccl_ = nccl_emulation().counts();
  const emulated_cuda::Counts cuda_ = emulation().counts();
  uint64_t made_ = 0;
  bool may_leave_behind_ = false;
  std::unique_ptr<TestJob> job_;
};

}  // namespace rabit::testing
