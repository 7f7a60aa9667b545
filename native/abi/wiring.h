// Wiring: the library's main().  The one place that names transports, backends, codecs and
// controllers.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "abi/options.h"
#include "backend/ps/ps_wire.h"
#include "base/bytes.h"
#include "base/dtype.h"
#include "base/result.h"
#include "collective/flow_rates.h"
#include "engine/engine.h"
#include "membership/pool.h"

namespace rabit {

// One engine with everything it stands on.
class WiredEngine {
 public:
  virtual ~WiredEngine() = default;
  virtual Engine& engine() = 0;
  // Engine::Stop, and what the engine has from a pool goes back.
  virtual Status Stop(Deadline deadline) = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The number by which requests of this engine name a codec; 0 is none.
  virtual Result<int32_t> AddCodec(std::string_view spec) = 0;
  // Its specification with every parameter, which is what ranks agree about.
  virtual Result<std::string> CodecSpecOf(int32_t number) const = 0;
  // See PsBackend::Update.
  virtual Status Update(PushMode mode, uint64_t key, const TensorView& in_out,
                        Deadline deadline) = 0;
  // See collective/flow_rates.h.  An ordered call of all ranks: a failure fails the engine.
  virtual Status MeasureFlows(std::span<Flow> flows, Deadline deadline) = 0;
  // The position in the table that requests name.
  virtual Result<BackendId> FindBackend(std::string_view name) const = 0;
};

// Waits until all ranks are connected, at most connect_timeout_ms.
Result<std::unique_ptr<WiredEngine>> StartWiredEngine(const Options& options);
// Over connections that outlive it.  Rank and size follow from options.members.
Result<std::unique_ptr<WiredEngine>> StartEngineOver(std::shared_ptr<ConnectionPool> pool,
                                                     Options options);

// What this build and machine offer, as JSON.
std::string CapabilitiesJson();
// What rabit_describe_cuda tells.
std::string CudaJson();
// What rabit_describe_nccl tells of the library at this path.
std::string NcclJson(const std::string& library);

}  // namespace rabit
