#include "abi/wiring.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <iterator>
#include <map>

#include "abi/connections.h"
#include "abi/mpi_wiring.h"
#include "abi/nccl_wiring.h"
#include "abi/ps_wiring.h"
#include "arithmetic/reduce.h"
#include "backend/builtin/builtin_backend.h"
#include "backend/hierarchical/hierarchical_backend.h"
#include "backend/nccl/nccl_library.h"
#include "base/check.h"
#include "base/device/cuda_driver.h"
#include "base/json_writer.h"
#include "base/kind.h"
#include "base/mutex.h"
#include "codec/codec_table.h"
#include "collective/allreduce.h"
#include "control/channel_controller.h"
#include "include/rabit_abi.h"
#include "route/carried_limit.h"
#include "route/router.h"
#include "schedule/fifo_scheduler.h"
#include "schedule/priority_scheduler.h"
#include "transport/shm/control_ring.h"
#include "transport/shm/shm_transport.h"

namespace rabit {
namespace {

using std::chrono_literals::operator""ms;

// Of a start with link_model=measured.
constexpr std::chrono::milliseconds kMeasuringTime = 50ms;

std::string List(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

Result<int32_t> Position(const char* what, const std::vector<std::string>& names,
                         std::string_view wanted) {
  const auto found = std::find(names.begin(), names.end(), wanted);
  if (found != names.end()) return static_cast<int32_t>(found - names.begin());
  return InvalidArgument("unknown " + std::string(what) + " '" + std::string(wanted) +
                         "': this engine has " + List(names) + "; name one of them");
}

constexpr std::string_view kNoCodec = "none";

class WiredEngineImplementation final : public WiredEngine {
 public:
  WiredEngineImplementation(const Options& options, std::vector<std::string> backends,
                            std::shared_ptr<Connections> ground, std::unique_ptr<Engine> engine,
                            BuiltinBackend& builtin, PsBackend* ps)
      : rank_(options.rank),
        size_(options.size),
        backends_(std::move(backends)),
        ground_(std::move(ground)),
        engine_(std::move(engine)),
        ordered_stream_(options.streams() - 1),
        builtin_(builtin),
        ps_(ps) {}

  Engine& engine() override { return *engine_; }
  Status Stop(Deadline deadline) override {
    // The engine's own lock makes a second Stop wait for the first one and return the same.
    Status status = engine_->Stop(deadline);
    // A thread that does not end may use the connections still.
    if (engine_->HasEnded()) ground_->Leave();
    return status;
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<int32_t> AddCodec(std::string_view spec) override {
    if (spec == kNoCodec) return 0;
    RABIT_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec, MakeCodec(spec));
    MutexLock lock(codecs_mutex_);
    const auto next = static_cast<int32_t>(codec_specs_.size());
    // Two spellings of one codec get one number: the spec is the normal form, and ranks compare it
    // as text.
    const auto [found, is_new] = codec_numbers_.emplace(codec->spec(), next);
    // The view is of a key of the map, which does not move; entries are never erased.
    if (is_new) codec_specs_.push_back(found->first);
    return found->second;
  }
  Result<std::string> CodecSpecOf(int32_t number) const override {
    MutexLock lock(codecs_mutex_);
    if (number >= 0 && static_cast<size_t>(number) < codec_specs_.size())
      return std::string(codec_specs_[static_cast<size_t>(number)]);
    return InvalidArgument("there is no codec " + std::to_string(number) + ": this engine has " +
                           std::to_string(codec_specs_.size()) + "; add it first");
  }
  Status Update(PushMode mode, uint64_t key, const TensorView& in_out, Deadline deadline) override {
    if (ps_ != nullptr) return ps_->Update(mode, key, in_out, deadline);
    return Unsupported(
        "this job has no summation servers that keep parameters; start some with 'rabitrun -s 2', "
        "and RABIT_PS_ASYNC=1 on all ranks");
  }
  Status MeasureFlows(std::span<Flow> flows, Deadline deadline) override {
    return engine().RunOrdered("a measurement of links", [&] {
      return builtin_.MeasureFlows(ordered_stream_, flows, deadline);
    });
  }
  Result<BackendId> FindBackend(std::string_view name) const override {
    return Position("backend", backends_, name);
  }

 private:
  const int rank_;
  const int size_;
  const std::vector<std::string> backends_;
  mutable Mutex codecs_mutex_;
  // A caller may use a number at any time, so that numbers stay; their texts are there once.
  std::map<std::string, int32_t> codec_numbers_ RABIT_GUARDED_BY(codecs_mutex_);
  std::vector<std::string_view> codec_specs_ RABIT_GUARDED_BY(codecs_mutex_) = {""};
  const std::shared_ptr<Connections> ground_;
  const std::unique_ptr<Engine> engine_;
  const int ordered_stream_;
  BuiltinBackend& builtin_;  // the engine's
  PsBackend* const ps_;      // the engine's; null: there is none
};

// On one host, with fewer than two cores for each rank, a second lane takes its core from the
// first: over MPI because a lane that waits polls, and over shared memory because both copy.
bool LanesShareCores(const Options& options, const HostCores& cores) {
  return options.backend.starts_with("mpi") && 2 * cores.ranks_per_core() > 1;
}

// Where ranks of one host share its cores, one collective keeps them busy, and a second at the same
// time only adds changes of thread.  A number that the user chose stays.
int32_t LanesInUse(const Options& options, bool shares_cores) {
  if (options.lanes > 0) return options.lanes;
  return shares_cores ? 1 : Options::kLanes;
}

ScheduleLimits LimitsFrom(const Options& options, bool shares_cores) {
  ScheduleLimits limits;
  limits.partition_bytes = options.partition_bytes;
  limits.fusion_bytes = options.fusion_bytes;
  limits.credit_bytes = options.credit_bytes;
  limits.lanes = LanesInUse(options, shares_cores);
  return limits;
}

// A class of lanes for each backend that a request can name.
LaneClassOptions LaneClassesFrom(const Options& options, std::vector<std::string> backends,
                                 const Router& router) {
  LaneClassOptions classes;
  if (!backends.empty() && backends.back() == "nccl") {
    classes.ordered_class = static_cast<int32_t>(backends.size()) - 1;
  }
  classes.names = std::move(backends);
  classes.lanes_started = options.started_lanes();
  // The router outlives the scheduler: both belong to the engine's parts.  It is a pure function of
  // agreed values, so every rank finds the same class.
  classes.class_of = [&router](const ScheduledTensor& tensor, int64_t bytes) {
    return router.BackendOf(tensor, bytes, tensor.is_of_all);
  };
  return classes;
}

std::unique_ptr<Scheduler> MakeScheduler(const Options& options, bool shares_cores,
                                         LaneClassOptions classes) {
  const ScheduleLimits limits = LimitsFrom(options, shares_cores);
  if (options.scheduler == "fifo") return MakeFifoScheduler(limits, std::move(classes));
  return MakePriorityScheduler(limits, std::move(classes));
}

std::unique_ptr<Controller> MakeJobController(const Options& options, const RankTree& tree,
                                              std::unique_ptr<Channel> channel) {
  ControllerOptions controller;
  controller.cache_capacity = static_cast<size_t>(std::max(options.cache_capacity, 1));
  controller.stall_warning_ms =
      options.stall_warning_ms > 0 ? options.stall_warning_ms : int64_t{3'600'000};
  controller.stall_abort_ms = options.stall_abort_ms;
  // Without a limit nobody waits for credit, and an agreement that says nothing else is saved.
  controller.announces_credit = options.credit_bytes > 0;
  if (channel == nullptr) return MakeLocalController(controller, kSteadyClock);
  return MakeController(std::move(channel), tree, controller, kSteadyClock);
}

EngineOptions EngineOptionsFrom(const Options& options, int spin_us) {
  EngineOptions engine;
  engine.lanes = options.started_lanes();
  engine.operation_timeout_ms = options.operation_timeout_ms;
  engine.stall_warning_ms = options.stall_warning_ms;
  engine.stall_abort_ms = options.stall_abort_ms;
  engine.queue_capacity = static_cast<size_t>(options.queue_capacity);
  engine.pinned_bytes = static_cast<size_t>(options.pinned_bytes);
  engine.spin_us = spin_us;
  engine.log_level = options.shown_from();
  engine.operation_log = options.operation_log;
  engine.record = options.record;
  engine.epoch = options.epoch;
  const Options defaults;
  engine.chooses_limits = options.sizes == "measured" && options.scheduler == "priority" &&
                          options.partition_bytes == defaults.partition_bytes &&
                          options.fusion_bytes == defaults.fusion_bytes &&
                          options.credit_bytes == defaults.credit_bytes;
  return engine;
}

bool IsOneHost(const Options& options, const Connections& connections) {
  return connections.cores.ranks == options.size;
}

// Rank 0 receives every rank's data and sends everybody the result.  In a tree it would pass
// through the ranks between, which cannot combine it.
int64_t InlineBytes(const Options& options, const Connections& connections, const LinkModel& link) {
  const bool hears_every_rank =
      static_cast<int>(connections.tree.children(0).size()) == options.size - 1;
  const bool is_builtin =
      options.backend == "builtin" || options.backend == "auto" || options.backend == "nccl";
  if (!is_builtin || !hears_every_rank || options.size == 1) return 0;
  // Whoever names algorithms is to get them.
  if (!options.allreduce_algorithm.empty() || !options.route.empty())
    return std::min(options.inline_bytes, CarriedAnyway(options.size));
  const bool all_share_memory = IsOneHost(options, connections) && connections.shares_memory;
  // What is carried is summed in rank order, and what follows a plan is not: another run must not
  // carry another size.
  return CarriedLimit(options.deterministic ? LinkModel() : link, options.size,
                      all_share_memory ? std::min(options.inline_bytes, kControlRingMessageBytes)
                                       : options.inline_bytes);
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Result<std::unique_ptr<BuiltinBackend>> MakeBuiltin(const Options& options,
                                                    Connections& connections) {
  RABIT_ASSIGN_OR_RETURN(
      std::unique_ptr<BuiltinBackend> builtin,
      BuiltinBackend::Create(std::move(connections.transport), connections.topology));
  const std::chrono::microseconds budget(options.link_model == "measured" ? kMeasuringTime : 0ms);
  RABIT_RETURN_IF_ERROR(
      builtin->MeasureLinks(budget, After(std::chrono::milliseconds(options.connect_timeout_ms))));
  return builtin;
}

// What a collective may be routed to.
struct Executors {
  std::vector<std::unique_ptr<Backend>> backends;
  std::unique_ptr<const Router> router;
  std::vector<std::string> names;  // those that a request can name
  PsBackend* ps = nullptr;         // among the backends; null: there is none
};

// Of tensors in the memory of the host: NCCL takes none.
std::string_view DefaultOnHost(const Options& options) {
  for (const std::string_view name : Split(options.backend, ',')) {
    if (name != "nccl" && name != "auto") return name;
  }
  return "builtin";
}

// Always the builtin one first, then what option backend names; ps also wherever there are servers.
Result<std::vector<std::string>> BackendNames(const Options& options) {
  if (options.backend == "auto") return std::vector<std::string>{"builtin", "nccl"};
  bool has_mpi = false;
  bool has_nccl = false;
  for (const std::string_view name : Split(options.backend, ',')) {
    has_mpi = has_mpi || name == "mpi";
    has_nccl = has_nccl || name == "nccl";
    if (name != "builtin" && name != "mpi" && name != "nccl" && name != "ps") {
      return InvalidArgument("RABIT_BACKEND is '" + options.backend + "': there is no backend '" +
                             std::string(name) +
                             "'; name builtin, mpi, nccl or ps, or several with commas, the "
                             "default first, or auto alone");
    }
  }
  std::vector<std::string> names = {"builtin"};
  if (has_mpi) names.emplace_back("mpi");
  if (options.has_ps()) names.emplace_back("ps");
  if (has_nccl) names.emplace_back("nccl");
  return names;
}

// Rank 0's rules, on every rank; or what is wrong with them.
Result<std::string> RouteTable(const Options& options, const Connections& connections) {
  if (options.route_table.empty()) return std::string();
  std::string told = options.route_table;
  if (connections.watch != nullptr) {
    const std::string key = "route_table/" + std::to_string(options.epoch);
    if (options.rank == 0) {
      RABIT_RETURN_IF_ERROR(connections.watch->Set(key, told));
    } else {
      const Deadline deadline = After(std::chrono::milliseconds(options.connect_timeout_ms));
      // The watch ends this wait with the cause if another rank fails meanwhile.
      RABIT_ASSIGN_OR_RETURN(told, connections.watch->Get(key, deadline));
    }
  }
  // The first character tells rules from an error: every rank must fail with rank 0, and not wait
  // for it.
  if (!told.starts_with('=')) return InvalidArgument(told.substr(1));
  return told.substr(1);
}

// NCCL alone, and inside the hosts with what the host's tensors take between them.
void AddNccl(const Options& options, const Topology& topology, std::unique_ptr<Backend> nccl,
             Executors& made, RouterOptions& router) {
  const auto executor = static_cast<int32_t>(made.backends.size());
  router.nccl = {.backend = static_cast<BackendId>(made.names.size()) - 1,
                 .executor = executor,
                 .hierarchy = executor + 1,
                 .is_default = options.backend == "auto" || options.backend.starts_with("nccl")};
  const bool is_over_mpi = DefaultOnHost(options) == "mpi";
  const int32_t between = is_over_mpi ? router.mpi->messages : Router::kBuiltin;
  // What MPI's messages cost is not measured.
  const LinkModel link = is_over_mpi ? LinkModel{} : router.links.slowest;
  made.backends.push_back(std::move(nccl));
  // The hierarchy refers to two backends of the same list, whose objects do not move when the list
  // grows.
  Backend& inside = *made.backends.back();
  made.backends.push_back(std::make_unique<HierarchicalBackend>(
      "nccl.hierarchical",
      HierarchyParts{inside, *made.backends[static_cast<size_t>(between)], topology, link}));
}

Result<Executors> MakeExecutors(const Options& options, const Connections& connections,
                                std::unique_ptr<BuiltinBackend> builtin) {
  Executors made;
  RABIT_ASSIGN_OR_RETURN(made.names, BackendNames(options));
  WiredNccl nccl;
  if (made.names.back() == "nccl") {
    // All ranks have the same verdict about NCCL; one that left it out alone would number its
    // backends differently.
    RABIT_ASSIGN_OR_RETURN(nccl, WireNccl(options, connections));
    if (nccl.backend == nullptr) {
      Logger(options.shown_from())
          .Info("backend auto is builtin alone, without NCCL: " + nccl.unavailable);
      made.names.pop_back();
    }
  }
  RouterOptions router;
  router.topology = connections.topology;
  router.is_deterministic = options.deterministic;
  router.shares_memory = connections.shares_memory;
  router.links = builtin->links();
  RABIT_ASSIGN_OR_RETURN(router.rules,
                         AlgorithmRules::Parse(options.allreduce_algorithm, options.deterministic));
  const RouteNames names{made.names, options.deterministic};
  RABIT_ASSIGN_OR_RETURN(router.routes, RouteRules::Parse("RABIT_ROUTE", options.route, names));
  RABIT_ASSIGN_OR_RETURN(const std::string table, RouteTable(options, connections));
  RABIT_ASSIGN_OR_RETURN(router.table,
                         RouteRules::Parse("RABIT_ROUTE_TABLE, whose rules are", table, names));
  made.backends.push_back(std::move(builtin));
  if (std::find(made.names.begin(), made.names.end(), "mpi") != made.names.end()) {
    const bool is_always = router.routes.NameAlgorithmOf(1) || router.table.NameAlgorithmOf(1);
    RABIT_ASSIGN_OR_RETURN(WiredMpi mpi, WireMpi(options, connections, 1, is_always));
    std::move(mpi.backends.begin(), mpi.backends.end(), std::back_inserter(made.backends));
    router.mpi = mpi.rows;
  }
  if (options.ps_async && options.servers == 0) {
    return InvalidArgument(
        "option ps_async is set, and the job has no summation servers that could keep parameters; "
        "start some with 'rabitrun -s 2', or unset RABIT_PS_ASYNC");
  }
  if (options.server_replicas > 1 && options.servers < options.server_replicas) {
    return InvalidArgument("option server_replicas is " + std::to_string(options.server_replicas) +
                           ", and the job has " + std::to_string(options.servers) +
                           " summation servers: each sum has to be on so many of them; start more "
                           "with 'rabitrun -s 2', or "
                           "unset RABIT_SERVER_REPLICAS");
  }
  if (options.has_ps()) {
    router.ps = {.backend = 1 + router.mpi.has_value(),
                 .executor = static_cast<int32_t>(made.backends.size()),
                 .is_default = DefaultOnHost(options) == "ps"};
    // A job of one rank has nobody to exchange anything with.
    if (options.size > 1) {
      RABIT_ASSIGN_OR_RETURN(std::unique_ptr<PsBackend> ps, WirePs(options, connections));
      made.ps = ps.get();
      made.backends.push_back(std::move(ps));
    }
  }
  if (nccl.backend != nullptr) {
    AddNccl(options, connections.topology, std::move(nccl.backend), made, router);
  }
  made.router = std::make_unique<const Router>(std::move(router));
  return made;
}

Result<std::unique_ptr<WiredEngine>> StartOn(std::shared_ptr<Connections> ground,
                                             const Options& options) {
  Connections& connections = *ground;
  EngineParts parts;
  parts.rank = options.rank;
  parts.size = options.size;
  parts.options = EngineOptionsFrom(options, connections.spin_us);
  RABIT_ASSIGN_OR_RETURN(std::unique_ptr<BuiltinBackend> builtin,
                         MakeBuiltin(options, connections));
  parts.options.inline_bytes = InlineBytes(options, connections, builtin->links().slowest);
  const bool is_one_host = IsOneHost(options, connections);
  const bool shares_cores = builtin->shares_cores() || LanesShareCores(options, connections.cores);
  parts.controller = MakeJobController(options, connections.tree, std::move(connections.channel));

  BuiltinBackend& messages = *builtin;
  RABIT_ASSIGN_OR_RETURN(Executors made, MakeExecutors(options, connections, std::move(builtin)));
  parts.backends = std::move(made.backends);
  parts.router = std::move(made.router);
  parts.scheduler = MakeScheduler(options, is_one_host && shares_cores,
                                  LaneClassesFrom(options, made.names, *parts.router));

  parts.codecs = MakeCodecSet();
  parts.open_driver = [] { return LoadCudaDriver(); };
  const std::vector<int>& host_of = connections.topology.host_of;
  parts.local_rank = static_cast<int>(std::count(host_of.begin(), host_of.begin() + options.rank,
                                                 host_of[static_cast<size_t>(options.rank)]));
  // The connections must outlive the engine's threads, also one that is left behind; so the parts
  // hold them as well.
  parts.ground = ground;
  RABIT_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Start(std::move(parts)));
  return std::unique_ptr<WiredEngine>(std::make_unique<WiredEngineImplementation>(
      options, std::move(made.names), std::move(ground), std::move(engine), messages, made.ps));
}

Result<std::unique_ptr<WiredEngine>> StartConnected(const Options& options,
                                                    std::shared_ptr<ConnectionPool> pool) {
  RABIT_ASSIGN_OR_RETURN(Connections connections, ConnectRanks(options, std::move(pool)));
  const auto ground = std::make_shared<Connections>(std::move(connections));
  Result<std::unique_ptr<WiredEngine>> started = StartOn(ground, options);
  if (started.ok() || ground->watch == nullptr) return started;
  // The others are still starting and would wait for this rank until their deadline.
  return ground->watch->Fail(started.status());
}

}  // namespace

Result<std::unique_ptr<WiredEngine>> StartWiredEngine(const Options& options) {
  return StartConnected(options, nullptr);
}

Result<std::unique_ptr<WiredEngine>> StartEngineOver(std::shared_ptr<ConnectionPool> pool,
                                                     Options options) {
  RABIT_ASSIGN_OR_RETURN(const std::vector<int> members, ParseMembers(options.members));
  const auto mine = std::find(members.begin(), members.end(), pool->member());
  if (mine == members.end()) {
    return InvalidArgument("member " + std::to_string(pool->member()) + " is not among members=" +
                           options.members + " of epoch " + std::to_string(options.epoch) +
                           ": this process was left out, and starts no engine with them");
  }
  // The place in the list is the rank: every member gets the same list, and so the same numbers.
  options.rank = static_cast<int32_t>(mine - members.begin());
  options.size = static_cast<int32_t>(members.size());
  return StartConnected(options, std::move(pool));
}

std::string CapabilitiesJson() {
  JsonWriter json;
  const auto list = [&json](std::string_view key, const auto& rows, auto name) {
    json.Key(key).BeginArray();
    for (const auto& row : rows) json.Value(std::string_view(name(row)));
    json.EndArray();
  };
  const auto names = [&list](std::string_view key, std::initializer_list<std::string_view> all) {
    list(key, all, [](std::string_view name) { return name; });
  };
  const Status shm = ProbeShm(ShmOptions());
  json.BeginObject().Member("abi_version", RABIT_ABI_VERSION);
  list("kernels", AvailableKernelSets(), [](KernelSet set) { return Name(set); });
  shm.ok() ? names("transports", {"tcp", "shm"}) : names("transports", {"tcp"});
  json.Member("shm_unavailable", shm.ok() ? std::string() : shm.message());
  names("backends", {"builtin", "mpi", "nccl", "ps"});
  json.Key("codecs").BeginArray().Value(kNoCodec);
  for (const CodecRow& row : CodecTable()) json.Value(row.name);
  json.EndArray();
  list("algorithms", AllreduceAlgorithms(), [](const auto& row) { return row.name; });
  json.Key("routes").BeginObject();  // algorithms by kind
  for (const KindTraits& traits : kKindTraits) {
    const auto algorithms = AlgorithmNames(traits.kind);
    if (algorithms.empty()) continue;
    list(Name(traits.kind), algorithms, [](std::string_view name) { return name; });
  }
  json.EndObject();
  names("schedulers", {"priority", "fifo"});
  json.Key("options").BeginArray();
  for (const OptionInfo& info : DescribeOptions()) {
    json.BeginObject().Member("key", info.key).Member("type", info.type);
    json.Member("default", info.default_value).Member("range", info.range);
    json.Member("summary", info.summary).EndObject();
  }
  return json.EndArray().EndObject().Take();
}

std::string CudaJson() {
  const Result<std::shared_ptr<DeviceDriver>> driver = LoadCudaDriver();
  JsonWriter json;
  json.BeginObject().Member("unavailable", driver.ok() ? std::string() : driver.status().message());
  if (driver.ok()) (*driver)->Write(json);
  return json.EndObject().Take();
}

std::string NcclJson(const std::string& library) {
  const Result<std::shared_ptr<const NcclLibrary>> found = NcclLibrary::Load(library);
  JsonWriter json;
  json.BeginObject().Member("unavailable", found.ok() ? std::string() : found.status().message());
  if (found.ok()) (*found)->Write(json);
  return json.EndObject().Take();
}

}  // namespace rabit
