#include "backend/ps/summation_server.h"

#include <pthread.h>

#include <chrono>
#include <numeric>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "backend/ps/ps_wire.h"
#include "backend/ps/summation_loop.h"
#include "base/result.h"

namespace rabit {

SummationServer::SummationServer(std::unique_ptr<Transport> endpoints, int workers, int streams,
                                 bool takes_updates, int replicas, const EncodingAdder* adder,
                                 const SilenceLimit& silence)
    : endpoints_(std::move(endpoints)),
      workers_(workers),
      streams_(streams),
      takes_updates_(takes_updates),
      replicas_(replicas),
      adder_(adder),
      silence_{silence.time, [this, tell = silence.tell](int rank) { TellOnce(rank, tell); }},
      parameters_(static_cast<size_t>(endpoints_->size() - workers)) {
  for (size_t place = 0; place < parameters_.size(); ++place) {
    const bool is_own = static_cast<int>(place) == endpoints_->rank() - workers;
    if (is_own || replicas > 1) parameters_[place] = std::make_unique<ParameterStore>(workers);
  }
}

Status SummationServer::Serve() {
  Fail(ServeAll());
  // Fail has aborted the transport, so every loop comes back with that error.
  for (Worker& loop : loops_) loop.thread.join();
  MutexLock lock(mutex_);
  return failure_;
}

Status SummationServer::ServeAll() {
  std::vector<int> everybody(static_cast<size_t>(workers_));
  std::iota(everybody.begin(), everybody.end(), 0);
  RABIT_RETURN_IF_ERROR(Start(kWorld, everybody));
  for (int worker = 0; takes_updates_ && worker < workers_; ++worker) {
    RABIT_RETURN_IF_ERROR(StartLoops(kWorld, {worker}, streams_));
  }
  return AddGroups();
}

Status SummationServer::Start(GroupId group, const std::vector<int>& members) {
  JoinEnded();
  for (int stream = 0; stream < streams_; ++stream) {
    RABIT_RETURN_IF_ERROR(StartLoops(group, members, stream));
  }
  return Status();
}

Status SummationServer::StartLoops(GroupId group, const std::vector<int>& members, int stream) {
  const auto servers = static_cast<int>(parameters_.size());
  const int mine = endpoints_->rank() - workers_;
  for (int place = 0; place < servers; ++place) {
    PlaceCrew crew{group, members, stream, place, {}, 0};
    for (int i = 0; i < (replicas_ > 1 ? servers : 1); ++i) {
      const int server = (place + i) % servers;
      if (server == mine) crew.mine = crew.chain.size();
      crew.chain.push_back(workers_ + server);
    }
    if (crew.chain[crew.mine] == endpoints_->rank()) RABIT_RETURN_IF_ERROR(StartLoop(crew));
  }
  return Status();
}

Status SummationServer::StartLoop(const PlaceCrew& crew) {
  const auto has_ended = std::make_shared<std::atomic<bool>>(false);
  const auto run = [this, crew, has_ended] {
    ::pthread_setname_np(::pthread_self(), "rabit-sum");
    // The loops of several streams share the store of a place, which has a lock of its own.
    ParameterStore& store = *parameters_[static_cast<size_t>(crew.place)];
    const Status end =
        SummationLoop(*endpoints_, crew, bytes_summed_, store, adder_, silence_).Run();
    if (!end.ok()) Fail(end);
    // The flag is shared with the thread and not a member: loops_ moves its elements while threads
    // run.
    has_ended->store(true);
  };
  loops_.emplace_back();
  try {
    loops_.back() = {std::thread(run), has_ended};
  } catch (const std::system_error& refused) {
    loops_.pop_back();
    return ResourceExhausted(
        "a summation server has " + std::to_string(loops_.size()) +
        " threads, one for each stream of each group, and the system gives it none for group " +
        std::to_string(crew.group) + ": " + refused.what() +
        "; remove groups that are not needed, start fewer lanes, or raise the limit (ulimit -u)");
  }
  return Status();
}

void SummationServer::JoinEnded() {
  std::erase_if(loops_, [](Worker& loop) {
    if (!loop.has_ended->load()) return false;
    loop.thread.join();
    return true;
  });
}

// Rank 0 tells of every group before a member pushes.
Status SummationServer::AddGroups() {
  const auto receive = [this](Bytes into) {
    Operation operation = endpoints_->Recv(0, GroupHeaderTag(), into);
    for (;;) {
      Status status = operation.Wait(After(std::chrono::hours(1)));
      if (status.code() != Code::kTimedOut) return status;
    }
  };
  for (;;) {
    GroupHeaderBytes bytes{};
    RABIT_RETURN_IF_ERROR(receive(bytes));
    RABIT_ASSIGN_OR_RETURN(const GroupHeader header, DecodeGroupHeader(bytes, workers_));
    std::vector<int32_t> ranks(static_cast<size_t>(header.members));
    RABIT_RETURN_IF_ERROR(receive(std::as_writable_bytes(std::span(ranks))));
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] < 0 || ranks[i] >= workers_ || (i > 0 && ranks[i] <= ranks[i - 1])) {
        return Internal("rank 0 tells of group " + std::to_string(header.id) + " with rank " +
                        std::to_string(ranks[i]) + " in a job of " + std::to_string(workers_) +
                        " workers; run the same version of rabit on every worker and server");
      }
    }
    RABIT_RETURN_IF_ERROR(Start(header.id, {ranks.begin(), ranks.end()}));
  }
}

void SummationServer::TellOnce(int rank, const std::function<void(int rank)>& tell) {
  {
    MutexLock lock(mutex_);
    if (!silent_.insert(rank).second) return;
  }
  if (tell) tell(rank);
}

// The first reason counts; it ends everything else.
void SummationServer::Fail(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
  }
  endpoints_->Abort(why);
}

}  // namespace rabit
