#include "abi/ps_wiring.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "abi/hosts.h"
#include "abi/link_speed.h"
#include "abi/measured_links.h"
#include "backend/ps/link_shares.h"
#include "backend/ps/ps_backend.h"
#include "backend/ps/summation_server.h"
#include "base/log.h"
#include "base/spin_times.h"
#include "base/wire.h"
#include "codec/codec_adder.h"
#include "rendezvous/tcp_store.h"
#include "transport/connect.h"
#include "transport/tcp/tcp_transport.h"

namespace rabit {
namespace {

// Rank 0 says under this key what job comes to the servers next.
constexpr std::string_view kJobKey = "servers/job";
constexpr uint32_t kJobVersion = 5;
// Set when the server of that number has ended, by the store where it did not get to that.
constexpr std::string_view kEndedKey = "servers/ended/";
// Set by the server of that number when it has begun: it answers at once from then on.
constexpr std::string_view kBegunKey = "servers/begun/";
// How long a server waits for the next job at once; then it goes on waiting.
constexpr auto kJobWait = std::chrono::hours(1);

struct ServedJob {
  int64_t epoch = 1;
  int32_t workers = 0;
  std::vector<int32_t> servers;  // the numbers of those that take part, ascending
  int32_t streams = 0;
  int32_t tcp_connections = 1;
  int32_t takes_updates = 0;  // on one more stream
  int32_t replicas = 1;
  int32_t measures_links = 0;

  int all_streams() const { return streams + takes_updates; }
  int count() const { return static_cast<int>(servers.size()); }
  int processes() const { return workers + count(); }
  // Of the server of that number, among the processes; below 0: it has none.
  int PlaceOf(int number) const {
    const auto found = std::find(servers.begin(), servers.end(), number);
    return found == servers.end() ? -1 : workers + static_cast<int>(found - servers.begin());
  }
};

std::string ToRecord(const ServedJob& job) {
  std::vector<std::byte> record;
  WireWriter to(record);
  to.U32(kJobVersion);
  to.I64(job.epoch);
  to.I32(job.workers);
  to.Count(job.servers.size());
  for (const int32_t server : job.servers) to.I32(server);
  to.I32(job.streams);
  to.I32(job.tcp_connections);
  to.I32(job.takes_updates);
  to.I32(job.replicas);
  to.I32(job.measures_links);
  return std::string(AsText(record));
}

Result<ServedJob> JobFromRecord(std::string_view record) {
  WireReader from(AsBytes(record));
  const uint32_t version = from.U32();
  ServedJob job;
  job.epoch = from.I64();
  job.workers = from.I32();
  job.servers.resize(from.Count(sizeof(int32_t)));
  for (int32_t& server : job.servers) server = from.I32();
  for (int32_t* const each : {&job.streams, &job.tcp_connections, &job.takes_updates, &job.replicas,
                              &job.measures_links}) {
    *each = from.I32();
  }
  if (version != kJobVersion) {
    return Internal("the workers have version " + std::to_string(version) +
                    " of what servers are told, this server has " + std::to_string(kJobVersion) +
                    "; install one version on all hosts");
  }
  RABIT_RETURN_IF_ERROR(from.Finish("what rank 0 tells the servers"));
  return job;
}

std::string Key(int64_t epoch, const char* what, int number) {
  return std::to_string(epoch) + "/" + what + "/" + std::to_string(number);
}

// What every process tells of the link that it uses.
std::string LinkRecord(const Options& options) {
  const std::string address(AddressOfLink(options.bind_address, 0));
  const int64_t bandwidth =
      options.link_bandwidth > 0 ? options.link_bandwidth : LinkSpeed(address);
  return std::to_string(bandwidth) + " " + HostKeyOf(options);
}

std::string ServerText(int server) { return "server " + std::to_string(server); }

TcpOptions ServerLinks(const Options& options, int peers) {
  TcpOptions tcp = TcpOptionsFrom(options, true);  // no control channel watches servers
  tcp.purpose = "servers";
  tcp.is_many_to_one = true;
  for (int peer = 0; peer < peers; ++peer) tcp.peers.push_back(peer);
  return tcp;
}

// Where all processes of an engine are, once each has told of its link.  A host counts with the
// least that a process tells; where nothing is known of one, all count alike, because a guess could
// be far off.
Result<Places> ReadPlaces(int64_t epoch, int workers, int servers, StartWatch& watch,
                          Deadline deadline) {
  Places places{workers, {}, {}};
  std::map<std::string, int, std::less<>> numbers;
  for (int process = 0; process < workers + servers; ++process) {
    RABIT_ASSIGN_OR_RETURN(const std::string record,
                           watch.Get(Key(epoch, "link", process), deadline));
    const size_t space = std::min(record.find(' '), record.size());
    double bandwidth = 0;
    const auto [end, error] = std::from_chars(record.data(), record.data() + space, bandwidth);
    if (error != std::errc() || end != record.data() + space || space == record.size()) {
      return Internal("process " + std::to_string(process) + " tells '" + record +
                      "' of its link; install one version on all hosts")
          .WithCulprit(process);
    }
    const auto next = static_cast<int>(numbers.size());
    // Hosts are numbered by first appearance among the same records, so all processes number them
    // alike.
    const int host = numbers.emplace(record.substr(space + 1), next).first->second;
    places.host_of.push_back(host);
    if (host == next) places.bandwidth_of.push_back(bandwidth);
    double& least = places.bandwidth_of[static_cast<size_t>(host)];
    least = std::min(least, bandwidth);
  }
  const bool is_known = std::all_of(places.bandwidth_of.begin(), places.bandwidth_of.end(),
                                    [](double bandwidth) { return bandwidth > 0; });
  if (!is_known) places.bandwidth_of.assign(places.bandwidth_of.size(), 1.0);
  places.knows_rates = is_known;
  return places;
}

// Of all processes at the same time: what their links carry is `places.bandwidth_of` then.
Status Measure(Transport& endpoints, Deadline deadline, Places& places) {
  RABIT_ASSIGN_OR_RETURN(places.bandwidth_of, MeasureLinks(endpoints, places, deadline));
  places.knows_rates = places.bandwidth_of.size() > 1;
  return Status();
}

// ---- The workers' side ------------------------------------------------------------------------

// The servers of the next engine, of rank 0: all that have not ended, if there are replicas.
Result<std::vector<int32_t>> LivingServers(const Options& options, StartWatch& watch) {
  std::vector<int32_t> living;
  int ended = -1;
  for (int server = 0; server < options.servers; ++server) {
    const Result<std::string> end =
        watch.Get(std::string(kEndedKey) + std::to_string(server), Deadline{});
    if (!end.ok() && end.status().code() != Code::kTimedOut) return end.status();
    // The will of a server's store connection has come true: the process has ended, however it did.
    if (end.ok()) ended = server;
    if (!end.ok()) living.push_back(server);
  }
  if (ended < 0 || (options.server_replicas > 1 && !living.empty())) return living;
  return PeerLost(options.size + ended,
                  ServerText(ended) + " of " + std::to_string(options.servers) +
                      " has ended before this engine began, and " +
                      (living.empty() ? "so have all others"
                                      : "there are no replicas (RABIT_SERVER_REPLICAS=2)") +
                      "; its own output tells why. Start the job again");
}

// Rank 0 tells the servers and the other workers what comes; returns it.
Result<ServedJob> AgreeOnServers(const Options& options, StartWatch& watch, Deadline deadline) {
  ServedJob job;
  job.epoch = options.epoch;
  job.workers = options.size;
  job.measures_links = options.measure_links ? 1 : 0;
  if (options.servers == 0) return job;
  const std::string key = Key(options.epoch, "served", 0);
  if (options.rank == 0) {
    RABIT_ASSIGN_OR_RETURN(job.servers, LivingServers(options, watch));
    job.streams = options.streams();
    job.tcp_connections = options.tcp_connections;
    job.takes_updates = options.ps_async ? 1 : 0;
    job.replicas = std::min(options.server_replicas, job.count());
    // First the servers and then the workers, who wait for the servers next.
    RABIT_RETURN_IF_ERROR(watch.Set(kJobKey, ToRecord(job)));
    RABIT_RETURN_IF_ERROR(watch.Set(key, ToRecord(job)));
  }
  RABIT_ASSIGN_OR_RETURN(const std::string record, watch.Get(key, deadline));
  return JobFromRecord(record);
}

// The names of the servers, once all have come.
Result<std::vector<ServerName>> MeetServers(const Options& options, const ServedJob& job,
                                            StartWatch& watch, Deadline deadline) {
  std::vector<ServerName> names;
  const auto silence = std::chrono::milliseconds(options.heartbeat_timeout_ms);
  for (const int server : job.servers) {
    const auto has_passed = [](const Result<std::string>& found) {
      return !found.ok() && found.status().code() == Code::kTimedOut;
    };
    Result<std::string> host = watch.Get(std::string(kBegunKey) + std::to_string(server), deadline);
    if (has_passed(host)) {
      return TimedOut(ServerText(server) + " of " + std::to_string(options.servers) +
                      " has not appeared: " + host.status().message() +
                      ". Look at why it did not start, or correct RABIT_SERVERS")
          .WithCulprit(options.size + server);
    }
    if (!host.ok()) return host.status();
    // It has nothing to do but to answer.
    const Deadline answer = std::min(deadline, After(silence));
    host = watch.Get(Key(options.epoch, "server", server), answer);
    if (has_passed(host)) {
      return PeerLost(
          options.size + server,
          ServerText(server) + " of " + std::to_string(options.servers) +
              " runs, and has not answered within " + std::to_string(silence.count()) +
              " ms (RABIT_HEARTBEAT_TIMEOUT) that this engine begins: it hangs, or does "
              "not reach the store. End it; with RABIT_SERVER_REPLICAS=2 the next engine "
              "begins without it");
    }
    if (!host.ok()) return host.status();
    names.push_back({server, *std::move(host)});
  }
  return names;
}

// ---- The server's side ------------------------------------------------------------------------

std::string HostName() {
  char name[256] = {};
  (void)::gethostname(name, sizeof name - 1);
  return name;
}

Result<std::unique_ptr<Transport>> ConnectWorkers(const Options& options, const ServedJob& job,
                                                  StartWatch& watch, Listener& listener,
                                                  const Secret& secret, Deadline deadline) {
  const int number = job.PlaceOf(options.rank);
  const std::string addresses = PublishedAddress(options.bind_address, listener.address());
  RABIT_RETURN_IF_ERROR(
      watch.Set(Key(job.epoch, "address", number), std::string(AddressOfLink(addresses, 0))));
  RABIT_RETURN_IF_ERROR(watch.Set(Key(job.epoch, "server", options.rank), HostName()));
  RABIT_RETURN_IF_ERROR(watch.Set(Key(job.epoch, "link", number), LinkRecord(options)));
  const Topology nowhere;
  const ConnectContext context{number,  job.processes(),   static_cast<uint64_t>(job.epoch),
                               watch,   listener,          secret,
                               nowhere, job.all_streams(), deadline,
                               &watch};
  // Servers know each other only to give copies, and to measure the links between them.
  const bool servers_meet = job.replicas > 1 || job.measures_links != 0;
  const int peers = job.workers + (servers_meet ? job.count() : 0);
  TcpOptions tcp = ServerLinks(options, peers);
  tcp.connections_per_stream = job.tcp_connections;
  return ConnectTcpTransport(context, tcp);
}

// Workers that leave, for whatever reason, may be followed by others; what names a server may not.
bool IsEndOfJob(const Status& status, const ServedJob& job) {
  const bool is_left = status.code() == Code::kPeerLost || status.code() == Code::kTimedOut ||
                       status.code() == Code::kAborted;
  return is_left && status.culprit() < job.workers;
}

Result<std::unique_ptr<TcpStore>> ConnectStore(const Options& options, const Secret& secret) {
  return TcpStore::Connect(options.store, secret, -1,
                           After(std::chrono::milliseconds(options.connect_timeout_ms)));
}

void WarnOfSilence(const Options& options, const ServedJob& job, int rank, const Logger& log) {
  const int silent = job.servers[static_cast<size_t>(rank - job.workers)];
  log.Warning(ServerText(options.rank) + ": " + ServerText(silent) +
              " is connected and has not confirmed a copy for " +
              std::to_string(options.heartbeat_timeout_ms) +
              " ms (RABIT_HEARTBEAT_TIMEOUT): it gets no copies any more. Look at what it does, or "
              "raise that time where machines are slow");
}

// Until a worker leaves; returns why it did.
Status ServeJob(const Options& options, const ServedJob& job, const Secret& secret,
                const Logger& log) {
  // A client of the store has one will.
  RABIT_ASSIGN_OR_RETURN(const std::unique_ptr<TcpStore> store, ConnectStore(options, secret));
  const Deadline deadline = After(std::chrono::milliseconds(options.connect_timeout_ms));
  StartWatch watch(*store, job.epoch, job.workers + options.rank, ServerText(options.rank));
  RABIT_RETURN_IF_ERROR(watch.Join(deadline));
  // A port of its own for each job: the ranks of the last one may still hold theirs open.
  Result<std::unique_ptr<Listener>> listener =
      Listener::Open(ListenAddress(options.bind_address), secret, static_cast<uint64_t>(job.epoch),
                     job.PlaceOf(options.rank));
  if (!listener.ok()) return watch.Fail(listener.status());
  Result<std::unique_ptr<Transport>> endpoints =
      ConnectWorkers(options, job, watch, **listener, secret, deadline);
  if (!endpoints.ok()) return watch.Fail(endpoints.status());
  if (job.measures_links != 0) {
    Result<Places> places = ReadPlaces(job.epoch, job.workers, job.count(), watch, deadline);
    if (!places.ok()) return watch.Fail(places.status());
    const Status measured = Measure(**endpoints, deadline, *places);
    if (!measured.ok()) return watch.Fail(measured);
  }
  log.Info(ServerText(options.rank) + " serves " + std::to_string(job.workers) + " workers");
  const std::unique_ptr<const EncodingAdder> adder = MakeCodecAdder();
  const SilenceLimit silence{std::chrono::milliseconds(options.heartbeat_timeout_ms),
                             [&](int rank) { WarnOfSilence(options, job, rank, log); }};
  SummationServer server(*std::move(endpoints), job.workers, job.streams, job.takes_updates != 0,
                         job.replicas, adder.get(), silence);
  const Status end = server.Serve();
  log.Info(ServerText(options.rank) + " has summed " + std::to_string(server.bytes_summed()) +
           " bytes; " + (IsEndOfJob(end, job) ? "the workers have left" : end.message()));
  return end;
}

// A job and its thread: ranks may start the next engine while somebody still holds the last one,
// whose connections stay open until then.
class RunningJob {
 public:
  RunningJob(const Options& options, const ServedJob& job, const Secret& secret, const Logger& log)
      : thread_([this, &options, job, secret, &log] {
          const Status end = ServeJob(options, job, secret, log);
          if (!IsEndOfJob(end, job)) log.Error(ServerText(options.rank) + ": " + end.message());
          // The thread touches nothing of this object behind it; the destructor joins it in any
          // case.
          has_ended_.store(true);
        }) {}
  ~RunningJob() { thread_.join(); }
  RunningJob(const RunningJob&) = delete;
  RunningJob& operator=(const RunningJob&) = delete;

  bool has_ended() const { return has_ended_.load(); }

 private:
  std::atomic<bool> has_ended_{false};
  std::thread thread_;  // last: it uses what is above
};

}  // namespace

Result<std::unique_ptr<PsBackend>> WirePs(const Options& options, const Connections& connections) {
  const Deadline deadline = After(std::chrono::milliseconds(options.connect_timeout_ms));
  if (connections.turn != nullptr) {
    return Unsupported(
        "a job with the backend ps whose ranks come and go: servers do not follow members yet; "
        "leave out the servers and ps, or keep the ranks");
  }
  StartWatch& watch = *connections.watch;
  const int streams = options.streams() + (options.ps_async ? 1 : 0);
  RABIT_ASSIGN_OR_RETURN(const ServedJob job, AgreeOnServers(options, watch, deadline));
  RABIT_ASSIGN_OR_RETURN(std::vector<ServerName> names, MeetServers(options, job, watch, deadline));
  RABIT_RETURN_IF_ERROR(watch.Set(Key(options.epoch, "link", options.rank), LinkRecord(options)));
  RABIT_ASSIGN_OR_RETURN(Places places,
                         ReadPlaces(options.epoch, options.size, job.count(), watch, deadline));
  places.replicas = job.replicas;
  const ConnectContext context{options.rank,
                               job.processes(),
                               static_cast<uint64_t>(options.epoch),
                               watch,
                               connections.pool->listener(),
                               connections.pool->secret(),
                               connections.topology,
                               streams,
                               deadline,
                               &watch};
  TcpOptions tcp = ServerLinks(options, job.processes());
  tcp.spin = SocketSpinTimesFor(options.spin_us, connections.cores);
  RABIT_ASSIGN_OR_RETURN(std::unique_ptr<Transport> endpoints, ConnectTcpTransport(context, tcp));
  if (job.measures_links != 0) {
    RABIT_RETURN_IF_ERROR(Measure(*endpoints, deadline, places));
  }
  return std::make_unique<PsBackend>(std::move(endpoints), std::move(places), std::move(names),
                                     PsStreams{options.streams(), options.ps_async != 0},
                                     job.replicas, MakeCodecAdder(),
                                     Logger(options.shown_from(), options.rank));
}

Status ServeJobs(const Options& options) {
  const Logger log(options.shown_from());
  RABIT_ASSIGN_OR_RETURN(const Secret secret, Secret::FromHex(options.secret));
  RABIT_ASSIGN_OR_RETURN(const std::unique_ptr<TcpStore> store, ConnectStore(options, secret));
  RABIT_RETURN_IF_ERROR(
      store->LeaveWill(std::string(kEndedKey) + std::to_string(options.rank), HostName(),
                       After(std::chrono::milliseconds(options.connect_timeout_ms))));
  RABIT_RETURN_IF_ERROR(
      store->Set(std::string(kBegunKey) + std::to_string(options.rank), HostName()));
  std::vector<std::unique_ptr<RunningJob>> running;
  uint64_t seen = 0;
  for (;;) {
    Result<Versioned> next = store->Watch(kJobKey, seen, After(kJobWait));
    // A job's destructor joins its thread, so only those that have ended are dropped here: the next
    // job must not wait for the last one.
    std::erase_if(running, [](const auto& job) { return job->has_ended(); });
    // The wait has a deadline so that ended jobs are dropped now and then; a launcher that has gone
    // shows as another error.
    if (!next.ok() && next.status().code() == Code::kTimedOut) continue;
    if (!next.ok()) {
      log.Info(ServerText(options.rank) + " ends: " + next.status().message());
      return Status();
    }
    seen = next->version;
    RABIT_ASSIGN_OR_RETURN(const ServedJob job, JobFromRecord(next->value));
    if (job.PlaceOf(options.rank) < 0) continue;
    running.push_back(std::make_unique<RunningJob>(options, job, secret, log));
  }
}

}  // namespace rabit
