// Options: what the caller of rabit_start may choose, parsed from lines "key=value".
//
// Every key is known, every value is checked against its range, and an unknown key names the
// nearest known one: a misspelt option must not silently change nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/result.h"

namespace rabit {

struct Options {
  // Who this process is.
  int32_t rank = 0;
  int32_t size = 1;
  int64_t epoch = 1;     // 1, 2, 3, … per init; equal on all ranks
  int32_t member = 0;    // of a pool: the number of this process, whatever its rank
  std::string members;   // of an engine over a pool: the numbers of its processes, by rank
  std::string host_key;  // equal for ranks that can share memory; empty: asked from the system
  // How the ranks find each other; needed when size > 1.
  std::string store;   // "host:port"
  std::string secret;  // 64 hexadecimal digits
  std::string bind_address = "127.0.0.1";
  std::string transport = "auto";  // auto, tcp, shm
  int64_t connect_timeout_ms = 60'000;
  int64_t heartbeat_timeout_ms = 3000;  // a rank that is silent for longer is lost
  int32_t tcp_connections = 1;          // per pair of ranks and lane
  std::string tcp_checksum = "auto";    // auto, on, off: of payloads; auto: between hosts
  bool shm_single_copy = true;          // process_vm_readv where the kernel allows it
  bool shm_checksum = false;            // of payloads; then nothing is copied only once
  int64_t shm_ring_bytes = 0;           // per pair of ranks, lane and direction; 0: adaptive
  // What must be equal on all ranks, for comparison alone (rendezvous/equal_settings.h).
  std::string equal_settings;
  // How work is cut, ordered and run.
  int32_t lanes = 0;      // in use at first; 0: kLanes, or one where ranks share cores
  int32_t lanes_max = 0;  // what rabit_propose_tunables may ask for; 0: no more
  int64_t partition_bytes = 4 << 20;
  int64_t fusion_bytes = 64 << 20;     // 0: no fusion
  int64_t credit_bytes = 0;            // 0: no limit
  std::string sizes = "measured";      // measured, fixed: whether the three above may change
  std::string scheduler = "priority";  // priority, fifo
  std::string allreduce_algorithm;     // e.g. see AlgorithmRules; empty: by cost
  std::string route;                   // e.g. see RouteRules; empty: no rules
  // Rules for groups of all ranks, of which rank 0 tells the others: "=rules", or "!why there are
  // none" on rank 0, and "?" elsewhere.  Empty on all ranks: none.
  std::string route_table;
  std::string link_model = "measured";  // measured, fixed: what the choice by cost goes by
  bool deterministic = false;
  int32_t cache_capacity = 65'536;    // announced signatures that are remembered; 0: no cache
  std::string coordination = "auto";  // auto, star, tree: who talks to whom to agree
  int32_t coordination_fan_out = 8;   // of the tree
  int64_t inline_bytes = 64 << 10;    // blocking calls that may be negotiated with their data
  int32_t spin_us = -1;               // before a waiter sleeps; -1: chosen from the cores and ranks
  int64_t queue_capacity = 1 << 20;   // requests in flight
  int64_t pinned_bytes = 1 << 30;     // of the host's memory, for tensors on devices, at most
  std::string operation_log;          // the file for a line of each operation; empty: none
  std::string record;                 // the file of the record, which exists; empty: none
  // Who executes collectives.
  // The default first: builtin, mpi, nccl, ps, with commas; auto: nccl where every rank has it.
  std::string backend = "builtin";
  int32_t servers = 0;                   // summation servers; then there is the backend ps
  int32_t server_replicas = 1;           // servers that have each sum
  bool ps_async = false;                 // servers keep parameters, which ranks update by themselves
  bool measure_links = false;            // instead of what is said of them
  int64_t link_bandwidth = 0;            // of this host, bytes per second; 0: asked from the system
  std::string mpi;                       // see MpiHandles; needed when mpi is among them
  std::string mpi_collectives = "auto";  // auto, library, messages
  bool mpi_shm = true;                   // with auto: shared memory instead inside a host
  std::string nccl_library;              // see NcclLibrary::Load
  // When something does not go on.
  int64_t stall_warning_ms = 10'000;   // 0: never
  int64_t stall_abort_ms = 1'800'000;  // 0: never
  int64_t operation_timeout_ms = 0;    // of one bucket; 0: as long as all peers live
  std::string log_level = "warning";   // debug, info, warning, error, off

  static constexpr int32_t kLanes = 2;
  // Of each class; a backend that operations can name has one.
  int32_t started_lanes() const { return std::max(lanes > 0 ? lanes : kLanes, lanes_max); }
  int32_t lane_classes() const {
    const bool has_mpi = backend.find("mpi") != std::string::npos;
    const bool has_nccl = backend == "auto" || backend.find("nccl") != std::string::npos;
    return 1 + (has_mpi ? 1 : 0) + (has_ps() ? 1 : 0) + (has_nccl ? 1 : 0);
  }
  bool has_ps() const {
    return servers > 0 || backend == "ps" || backend.starts_with("ps,") ||
           backend.find(",ps") != std::string::npos;
  }
  // One for each lane, and one for ordered calls.
  int32_t streams() const { return started_lanes() * lane_classes() + 1; }
  // What log_level names.
  LogLevel shown_from() const;
};

Result<Options> ParseOptions(std::string_view text);
// "3,0,5"
Result<std::vector<int>> ParseMembers(std::string_view text);

// What a front end needs to build its own configuration from.
struct OptionInfo {
  std::string_view key;
  std::string_view type;  // "int", "bool", "string"
  std::string default_value;
  std::string range;  // "1 … 64", "auto, tcp or shm"; empty: any
  std::string_view summary;
};
std::vector<OptionInfo> DescribeOptions();

// Splits "key=value" lines; shared with rabit_store_start.
struct OptionLine {
  std::string_view key;
  std::string_view value;
};
Result<std::vector<OptionLine>> SplitOptionLines(std::string_view text);
// "unknown option 'lames'; did you mean 'lanes'? Known: …"
Status UnknownOption(std::string_view key, const std::vector<std::string_view>& known);

}  // namespace rabit
