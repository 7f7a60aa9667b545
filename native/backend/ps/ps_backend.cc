#include "backend/ps/ps_backend.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "arithmetic/reduce.h"
#include "backend/ps/ps_wire.h"
#include "backend/ps/push_pull.h"

namespace rabit {
namespace {

constexpr size_t kLanesMax = 256;  // a tag has 8 bits for the stream
// A message of some bytes to a server that listens all the time.
constexpr auto kTellTimeout = std::chrono::seconds(60);
// How soon, and later how often, a rank asks whether the slowest one has come on.
constexpr std::chrono::milliseconds kAskFirst{1};
constexpr std::chrono::milliseconds kAskLast{20};

}  // namespace

PsBackend::PsBackend(std::unique_ptr<Transport> endpoints, Places places,
                     std::vector<ServerName> servers, PsStreams streams, int replicas,
                     std::unique_ptr<const EncodingAdder> adder, const Logger& logger)
    : endpoints_(std::move(endpoints)),
      places_(std::move(places)),
      servers_(servers.size()),
      logger_(logger),
      holders_(static_cast<int>(servers.size()), replicas,
               [this](int server, const Status& why) { TellOfLoss(server, why); }),
      adder_(std::move(adder)),
      lanes_(kLanesMax),
      streams_(streams),
      update_routes_(FirstRoutes()) {
  for (size_t i = 0; i < servers.size(); ++i) {
    server_numbers_.push_back(servers[i].number);
    servers_[i].name = std::move(servers[i]);
  }
}

Status PsBackend::FailureSoFar() const {
  if (!has_failed_.load(std::memory_order_acquire)) return Status();
  MutexLock lock(mutex_);
  return failure_;
}

// All ranks find it: one tells.
void PsBackend::TellOfLoss(int server, const Status& why) const {
  const int next = holders_.Of(server);
  if (endpoints_->rank() != 0 || next < 0) return;
  logger_.Warning(Blame(server, why).message() + ". The job continues; server " +
                  std::to_string(server_numbers_[static_cast<size_t>(next)]) + " sums its part");
}

Status PsBackend::Blame(int server, const Status& status) const {
  // Whoever aborts fails the messages as well.
  RABIT_RETURN_IF_ERROR(FailureSoFar());
  const ServerName& name = servers_[static_cast<size_t>(server)].name;
  const std::string who = "server " + std::to_string(name.number) + " on host " + name.host;
  // A server that lives may tell of another one that does not.
  const bool is_other = status.code() == Code::kPeerLost && status.culprit() >= places_.workers &&
                        status.culprit() != places_.workers + server;
  const bool is_lost = status.code() == Code::kPeerLost && !is_other;
  return Status(status.code(), who + (is_lost ? " is lost" : "") + " (it counts as rank " +
                                   std::to_string(RankOf(server)) + "): " + status.message())
      .WithCulprit(RankOf(is_other ? status.culprit() - places_.workers : server));
}

Status PsBackend::TellServer(int server, const Group& group) {
  const GroupHeaderBytes header = Encode(GroupHeader{group.id, group.size()});
  std::vector<int32_t> ranks(group.ranks.begin(), group.ranks.end());
  const int rank = places_.workers + server;
  Operation first = endpoints_->Send(rank, GroupHeaderTag(), header);
  Operation second = endpoints_->Send(rank, GroupHeaderTag(), std::as_bytes(std::span(ranks)));
  const Deadline deadline = After(kTellTimeout);
  RABIT_RETURN_IF_ERROR(first.Wait(deadline));
  return second.Wait(deadline);
}

Status PsBackend::AddGroup(const Group& group) {
  RABIT_RETURN_IF_ERROR(FailureSoFar());
  // Nothing of a group of one is pushed.
  // Servers know the world from their start; one rank describes other groups for all.
  if (endpoints_->rank() != 0 || group.size() == 1 || group.id == kWorld) return Status();
  for (int server = 0; server < static_cast<int>(servers_.size()); ++server) {
    if (holders_.has_lost(server)) continue;
    const Status told = TellServer(server, group);
    // With replicas the place goes on elsewhere, and the next push to it finds out where.
    if (holders_.can_lose() && IsLossOf(told, places_.workers + server)) {
      holders_.Lose(server, told);
      continue;
    }
    if (!told.ok()) return Blame(server, told);
  }
  return Status();
}

void PsBackend::RemoveGroup(const Group& group) {
  for (Lane& lane : lanes_) {
    MutexLock lock(lane.mutex);
    // Engine thread; no lane runs anything of this group any more.
    lane.pushes.erase(group.id);
  }
  while (!ends_.empty() && ends_.front().sent->Wait(Deadline{}).code() != Code::kTimedOut) {
    ends_.pop_front();
  }
  const bool tells = group.my_index == 0 && group.size() > 1 && !holders_.can_lose();
  if (!tells || !FailureSoFar().ok()) return;
  PushHeader header;
  header.count = 1;
  header.mode = PushMode::kEnd;
  for (int stream = 0; stream < streams_.sums; ++stream) {
    header.tag = MakeTag(stream, 0);
    for (int server = 0; server < static_cast<int>(servers_.size()); ++server) {
      // The message refers to its header until it is sent, and this call must not wait for that:
      // both are kept until a later call.
      End& end = ends_.emplace_back(End{Encode(header), std::nullopt});
      end.sent.emplace(endpoints_->Send(places_.workers + server,
                                        PlaceTag(stream, group.id, PlaceStep::kHeader, server),
                                        end.header));
    }
  }
}

Status PsBackend::Check(const LaneContext& lane) const {
  if (lane.group.is_member() && lane.lane >= 0 && lane.lane < static_cast<int>(kLanesMax)) {
    return Status();
  }
  return InvalidArgument("an allreduce in group " + std::to_string(lane.group.id) + " on lane " +
                         std::to_string(lane.lane) +
                         ": this rank is no member, or the lane is not 0 to 255");
}

Operation PsBackend::Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) {
  RABIT_RETURN_IF_ERROR(FailureSoFar());
  RABIT_RETURN_IF_ERROR(Check(lane));
  if (lane.group.size() == 1 || in_out.count == 0) {
    ApplyEpilogue(lane.epilogue, in_out.dtype, static_cast<std::byte*>(in_out.data), in_out.count);
    return Status();
  }
  // The thread of the lane alone uses what is in here; the lock of PushesOf is for the map.
  Pushes& pushes = PushesOf(lanes_[static_cast<size_t>(lane.lane)], lane.group);
  return Sum(lane, in_out, op == ReduceOp::kAverage ? ReduceOp::kSum : op, PushMode::kSum,
             pushes.placement.Place(in_out.count, in_out.dtype));
}

// Chunks as long as those of a tensor of so many bytes; and a block more, so that what they cannot
// share makes none longer than another.
std::vector<EncodedSlice> PsBackend::DivideEncoded(const LaneContext& lane, int64_t bytes,
                                                   int64_t largest) {
  const int members = lane.group.size();
  // Every rank must cut alike, so nothing of this may depend on the rank.
  const int64_t most = PsChunkBytesMax(members);
  if (adder_ == nullptr || !Check(lane).ok() || members == 1 || largest > most) return {};
  Pushes& pushes = PushesOf(lanes_[static_cast<size_t>(lane.lane)], lane.group);
  const std::vector<Slice> slices = pushes.placement.Place(bytes, DType::kUint8);
  const int64_t chunks = PsChunksOf(slices, DType::kUint8, ChunkBytesFor(members));
  std::vector<EncodedSlice> divided;
  for (const Slice& slice : slices) {
    const int64_t chunk_bytes = (slice.count + chunks - 1) / chunks + largest;
    divided.push_back({slice.place, slice.begin, slice.count, std::min(chunk_bytes, most)});
  }
  return divided;
}

Operation PsBackend::SumEncoded(const LaneContext& lane, Bytes in_out,
                                std::span<const EncodedSlice> slices) {
  RABIT_RETURN_IF_ERROR(FailureSoFar());
  RABIT_RETURN_IF_ERROR(Check(lane));
  std::vector<Slice> pushed;
  for (const EncodedSlice& slice : slices) {
    pushed.push_back({slice.place, slice.begin, slice.bytes, slice.chunk_bytes});
  }
  const TensorView view{in_out.data(), static_cast<int64_t>(in_out.size()), DType::kUint8, {}};
  return Sum(lane, view, ReduceOp::kSum, PushMode::kCoded, pushed);
}

Status PsBackend::Sum(const LaneContext& lane, const TensorView& in_out, ReduceOp op, PushMode mode,
                      std::span<const Slice> slices) {
  Lane& mine = lanes_[static_cast<size_t>(lane.lane)];
  Pushes& pushes = PushesOf(mine, lane.group);
  endpoints_->SetWaiter(lane.lane, lane.waiter, in_out.bytes());
  const PushPullArgs args{.endpoints = *endpoints_,
                          .first_server = places_.workers,
                          .server_numbers = server_numbers_,
                          .members = lane.group.ranks,
                          .my_index = lane.group.my_index,
                          .group = lane.group.id,
                          .tag = lane.tag,
                          .deadline = lane.deadline,
                          .in_out = in_out,
                          .op = op,
                          .scratch = mine.scratch,
                          .chunk_bytes_most = ChunkBytesFor(lane.group.size()),
                          .mode = mode,
                          .epilogue = lane.epilogue,
                          .adder = adder_.get(),
                          .holders = holders_,
                          .routes = pushes.routes};
  PushPull run(args, slices,
               [this](int server, const Status& status) { return Blame(server, status); });
  RABIT_RETURN_IF_ERROR(run.Run());
  Count(slices, SizeOf(in_out.dtype), lane.group);
  return Status();
}

int64_t PsBackend::ChunkBytesFor(int members) const {
  const auto& rates = places_.bandwidth_of;
  if (!places_.knows_rates || rates.empty()) return PsChunkBytesMax(members);
  return PsChunkBytesBest(members, *std::min_element(rates.begin(), rates.end()));
}

PsBackend::Pushes& PsBackend::PushesOf(Lane& lane, const Group& group) const {
  MutexLock lock(lane.mutex);
  const auto found = lane.pushes.find(group.id);
  if (found != lane.pushes.end()) return found->second;
  Pushes first{Placement(SharesOf(places_, group.ranks)), FirstRoutes()};
  return lane.pushes.try_emplace(group.id, std::move(first)).first->second;
}

std::vector<PlaceRoute> PsBackend::FirstRoutes() const {
  std::vector<PlaceRoute> routes(servers_.size());
  for (size_t i = 0; i < routes.size(); ++i) routes[i].holder = static_cast<int>(i);
  return routes;
}

void PsBackend::Count(std::span<const Slice> slices, size_t element_bytes, const Group& group) {
  for (const Slice& slice : slices) {
    const uint64_t bytes = static_cast<uint64_t>(slice.count) * element_bytes;
    if (slice.place == group.my_index) {
      bytes_summed_.fetch_add(bytes * group.ranks.size(), std::memory_order_relaxed);
    }
    if (slice.place < group.size()) continue;
    const int holder = std::max(holders_.Of(slice.place - group.size()), 0);
    Server& server = servers_[static_cast<size_t>(holder)];
    server.bytes_pushed.fetch_add(bytes, std::memory_order_relaxed);
    server.bytes_pulled.fetch_add(bytes, std::memory_order_relaxed);
  }
}

// The same on all ranks, whatever else they update: behind this rank, which has place 0, the
// servers by what their links carry; a small tensor on one of them.
std::vector<Slice> PsBackend::SlicesOf(PushMode mode, uint64_t key, const TensorView& view) const {
  const auto servers = static_cast<uint64_t>(places_.servers());
  const auto bytes = view.count * static_cast<int64_t>(SizeOf(view.dtype));
  if (mode == PushMode::kClock) return {{1, 0, view.count}};
  if (bytes < 2 * Placement::kSliceBytesMin) {
    return {{static_cast<int>(1 + key % servers), 0, view.count}};
  }
  // Servers of one host share its link.
  std::vector<double> shares(1 + servers);
  double sum = 0;
  for (size_t server = 0; server < servers; ++server) {
    const auto process = static_cast<size_t>(places_.workers) + server;
    const int host = places_.host_of[process];
    const auto at_host =
        std::count(places_.host_of.begin() + places_.workers, places_.host_of.end(), host);
    shares[1 + server] =
        places_.bandwidth_of[static_cast<size_t>(host)] / static_cast<double>(at_host);
    sum += shares[1 + server];
  }
  for (double& share : shares) share /= sum;
  return Placement(std::move(shares)).Place(view.count, view.dtype);
}

Status PsBackend::Update(PushMode mode, uint64_t key, const TensorView& in_out, Deadline deadline) {
  RABIT_RETURN_IF_ERROR(FailureSoFar());
  if (!streams_.has_updates) {
    return Unsupported(
        "this job's servers keep no parameters; start it with RABIT_PS_ASYNC=1 on all ranks");
  }
  if (in_out.count == 0) return Status();
  if (mode == PushMode::kClock) return Advance(key, in_out, deadline);
  RABIT_RETURN_IF_ERROR(Exchange(mode, key, in_out, deadline));
  bytes_updated_.fetch_add(static_cast<uint64_t>(in_out.count) * SizeOf(in_out.dtype));
  return Status();
}

Status PsBackend::Exchange(PushMode mode, uint64_t key, const TensorView& in_out,
                           Deadline deadline) {
  // Updates share one stream and its tags, so they take turns; none of them waits for another rank.
  MutexLock lock(update_mutex_);
  RABIT_RETURN_IF_ERROR(update_failure_);
  const std::vector<int> me = {endpoints_->rank()};
  const PushPullArgs args{.endpoints = *endpoints_,
                          .first_server = places_.workers,
                          .server_numbers = server_numbers_,
                          .members = me,
                          .my_index = 0,
                          .group = kWorld,
                          .tag = MakeTag(streams_.sums, ++updates_),
                          .deadline = deadline,
                          .in_out = in_out,
                          .op = ReduceOp::kSum,
                          .scratch = update_scratch_,
                          .chunk_bytes_most = ChunkBytesFor(1),
                          .mode = mode,
                          .key = key,
                          .holders = holders_,
                          .routes = update_routes_};
  PushPull run(args, SlicesOf(mode, key, in_out),
               [this](int server, const Status& status) { return Blame(server, status); });
  const Status status = run.Run();
  // After an error the stream may hold half an exchange, and the next update would read it as its
  // own. A refusal is a whole answer.
  if (status.code() != Code::kInvalidArgument) update_failure_ = status;
  return status;
}

// The wait is here, and without the mutex: what other threads of this rank have to say may be what
// the slowest rank waits for.
Status PsBackend::Advance(uint64_t key, const TensorView& in_out, Deadline deadline) {
  auto* const clock = static_cast<int64_t*>(in_out.data);
  const int64_t step = clock[0], staleness = clock[1];
  int64_t said[2] = {step, 0};
  RABIT_RETURN_IF_ERROR(Exchange(PushMode::kClock, key, {said, 2, DType::kInt64, {}}, deadline));
  const bool waits = step >= 0 && staleness >= 0 && said[0] > staleness;
  for (std::chrono::milliseconds pause = kAskFirst; waits && said[0] > staleness;
       pause = std::min(2 * pause, kAskLast)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return TimedOut("rank " + std::to_string(endpoints_->rank()) + " is " +
                      std::to_string(said[0]) + " steps ahead of the slowest rank and may be " +
                      std::to_string(staleness) + ": look at what that rank does, or allow more");
    }
    (void)failed_.Wait([this] { return has_failed_.load(); }, std::min(After(pause), deadline));
    RABIT_RETURN_IF_ERROR(FailureSoFar());
    said[0] = step;
    said[1] = 1;
    RABIT_RETURN_IF_ERROR(Exchange(PushMode::kClock, key, {said, 2, DType::kInt64, {}}, deadline));
  }
  clock[0] = said[0];
  clock[1] = waits ? 1 : 0;
  steps_.fetch_add(1);
  steps_waited_.fetch_add(waits ? 1 : 0);
  MutexLock lock(update_mutex_);
  ahead_max_.store(std::max(ahead_max_.load(), said[0]));
  return Status();
}

void PsBackend::Abort(Status why) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
    has_failed_.store(true, std::memory_order_release);
  }
  failed_.Notify();
  // Last, and without the lock: it ends waits whose threads ask for the failure.
  endpoints_->Abort(std::move(why));
}

void PsBackend::WriteStatistics(JsonWriter& json) const {
  const TransportCounters counters = endpoints_->counters();
  json.Key("transport").BeginObject().Member("name", endpoints_->name());
  json.Member("bytes_sent", counters.bytes_sent).Member("bytes_received", counters.bytes_received);
  counters.WriteRepairs(json);
  json.EndObject();
  json.Member("bytes_summed", bytes_summed_.load());
  if (streams_.has_updates) {
    json.Key("updates").BeginObject().Member("bytes", bytes_updated_.load());
    json.Member("steps", steps_.load()).Member("steps_waited", steps_waited_.load());
    json.Member("ahead_max", ahead_max_.load()).EndObject();
  }
  json.Key("link_bandwidths").BeginArray();
  for (const double bandwidth : places_.bandwidth_of) json.Value(bandwidth);
  json.EndArray();
  json.Key("servers").BeginArray();
  for (const Server& server : servers_) {
    const bool is_lost = holders_.has_lost(static_cast<int>(&server - servers_.data()));
    json.BeginObject()
        .Member("number", server.name.number)
        .Member("host", server.name.host)
        .Member("is_lost", is_lost);
    json.Member("bytes_pushed", server.bytes_pushed.load());
    json.Member("bytes_pulled", server.bytes_pulled.load()).EndObject();
  }
  json.EndArray();
}

}  // namespace rabit
