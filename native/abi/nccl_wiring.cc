#include "abi/nccl_wiring.h"

#include <chrono>
#include <utility>

#include "backend/nccl/nccl_backend.h"
#include "backend/nccl/nccl_library.h"
#include "base/device/cuda_driver.h"
#include "rendezvous/start_watch.h"

namespace rabit {
namespace {

// "=2.27.3", or "!why not".
std::string Told(const Result<std::shared_ptr<const NcclLibrary>>& library) {
  if (!library.ok()) return "!" + library.status().message();
  const Result<std::shared_ptr<DeviceDriver>> driver = LoadCudaDriver();
  return driver.ok() ? "=" + (*library)->version() : "!" + driver.status().message();
}

// What follows from the words of all ranks; "=" if every rank has NCCL, of one version.
Result<std::string> Verdict(const Options& options, Store& store, const std::string& key,
                            const std::string& mine, Deadline deadline) {
  std::string first = mine;
  for (int rank = 0; rank < options.size; ++rank) {
    std::string told = mine;
    if (rank > 0) {
      RABIT_ASSIGN_OR_RETURN(told, store.Get(key + std::to_string(rank), deadline));
    }
    // The first rank that has none decides; the words of later ranks are not waited for.
    if (told.starts_with('!')) return "!on rank " + std::to_string(rank) + ": " + told.substr(1);
    if (told != first) {
      return "!rank 0 has NCCL " + first.substr(1) + " and rank " + std::to_string(rank) + " has " +
             told.substr(1) + ": install one version everywhere";
    }
  }
  return std::string("=");
}

Result<std::string> AgreedVerdict(const Options& options, const Connections& connections,
                                  const std::string& mine) {
  const std::string key = std::to_string(options.epoch) + "/nccl/has/";
  const Deadline deadline = After(std::chrono::milliseconds(options.connect_timeout_ms));
  if (options.size == 1) return mine.starts_with('=') ? "=" : mine;
  Store& store = *connections.watch;
  if (options.rank > 0) {
    RABIT_RETURN_IF_ERROR(store.Set(key + std::to_string(options.rank), mine));
    return store.Get(key + "verdict", deadline);
  }
  RABIT_ASSIGN_OR_RETURN(std::string verdict, Verdict(options, store, key, mine, deadline));
  RABIT_RETURN_IF_ERROR(store.Set(key + "verdict", verdict));
  return verdict;
}

}  // namespace

Result<WiredNccl> WireNccl(const Options& options, const Connections& connections) {
  const Result<std::shared_ptr<const NcclLibrary>> library =
      NcclLibrary::Load(options.nccl_library);
  RABIT_ASSIGN_OR_RETURN(const std::string verdict,
                         AgreedVerdict(options, connections, Told(library)));
  WiredNccl wired;
  if (verdict.starts_with('!')) {
    wired.unavailable = verdict.substr(1);
    if (options.backend == "auto") return wired;
    return Unsupported("RABIT_BACKEND is '" + options.backend + "', and there is no NCCL " +
                       wired.unavailable + ". With backend auto such a job does without");
  }
  wired.backend = std::make_unique<NcclBackend>(
      *library, connections.watch.get(),
      NcclOptions{options.rank, std::to_string(options.epoch), options.connect_timeout_ms});
  return wired;
}

}  // namespace rabit
