#include "backend/ps/summation_server.h"

#include <pthread.h>

#include <chrono>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "backend/ps/ps_wire.h"
#include "backend/ps/summation_loop.h"
#include "base/result.h"

namespace rabit {

SummationServer::SummationServer(std::unique_ptr<Transport> endpoints, int workers, int streams,
                                 bool takes_updates)
    : endpoints_(std::move(endpoints)),
      workers_(workers),
      streams_(streams),
      takes_updates_(takes_updates),
      parameters_(workers) {}

Status SummationServer::Serve() {
  std::vector<int> everybody(static_cast<size_t>(workers_));
  std::iota(everybody.begin(), everybody.end(), 0);
  Start(kWorld, everybody);
  for (int worker = 0; takes_updates_ && worker < workers_; ++worker) {
    StartLoop(kWorld, {worker}, streams_);
  }
  Fail(AddGroups());
  for (std::thread& thread : threads_) thread.join();
  MutexLock lock(mutex_);
  return failure_;
}

void SummationServer::Start(GroupId group, const std::vector<int>& members) {
  for (int stream = 0; stream < streams_; ++stream) StartLoop(group, members, stream);
}

void SummationServer::StartLoop(GroupId group, const std::vector<int>& members, int stream) {
  threads_.emplace_back([this, group, members, stream] {
    ::pthread_setname_np(::pthread_self(), "rabit-sum");
    Fail(SummationLoop(*endpoints_, group, members, stream, bytes_summed_, parameters_).Run());
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
    Start(header.id, {ranks.begin(), ranks.end()});
  }
}

// The first reason counts; it ends everything else.
void SummationServer::Fail(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
  }
  parameters_.Fail(why);
  endpoints_->Abort(why);
}

}  // namespace rabit
