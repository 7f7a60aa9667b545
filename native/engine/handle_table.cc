#include "engine/handle_table.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/numbered_name.h"

namespace rabit {
std::string NameKey(GroupId group, const std::string& name) {
  // Written at once: this runs for every request, and a key that grows is allocated again.
  const std::string number = std::to_string(group);
  std::string key;
  key.reserve(name.size() + 1 + number.size());
  key.append(name).append(1, '\n').append(number);
  return key;
}

std::string SendKey(GroupId group, const std::string& name, int receiver) {
  return NameKey(group, name) + ">" + std::to_string(receiver);
}

std::string RecvKey(GroupId group, const std::string& name, int sender) {
  return NameKey(group, name) + "<" + std::to_string(sender);
}

std::string KeyOf(const Request& request) {
  const Signature& signature = request.signature;
  if (signature.kind == Kind::kSend) return SendKey(signature.group, request.name, signature.root);
  if (signature.kind == Kind::kRecv) return RecvKey(signature.group, request.name, signature.root);
  return NameKey(signature.group, request.name);
}

HandleTable::HandleTable(int rank, size_t capacity, std::chrono::microseconds spin,
                         OverlapClock& clock, Record& record)
    : rank_(rank), capacity_(capacity), spin_(spin), clock_(clock), record_(record) {}

Result<std::vector<std::shared_ptr<PendingRequest>>> HandleTable::Open(std::span<Request> requests,
                                                                       int64_t now_ns) {
  // The names are opened first, under one lock, because two threads may submit the same name at the
  // same time; one of them is refused.
  RABIT_ASSIGN_OR_RETURN(const std::vector<NamedTensor*> named, OpenNames(requests));
  std::vector<std::shared_ptr<PendingRequest>> opened;
  opened.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const Handle handle = NewHandle();
    // Handles are given out in order and never again, so a released one cannot mean another
    // request.
    opened.push_back(
        std::make_shared<PendingRequest>(handle, std::move(requests[i]), *named[i], spin_, now_ns));
    record_.Submitted(*opened.back());
    Shard& shard = ShardOf(handle);
    MutexLock lock(shard.mutex);
    shard.requests.emplace(handle.value, opened.back());
  }
  return opened;
}

Result<std::vector<NamedTensor*>> HandleTable::OpenNames(std::span<const Request> requests) {
  std::vector<NamedTensor*> opened;
  opened.reserve(requests.size());
  MutexLock lock(names_mutex_);
  if (open_names_ + requests.size() > capacity_) {
    return ResourceExhausted("rank " + std::to_string(rank_) + ": " + std::to_string(open_names_) +
                             " requests are in flight already: the queue is bounded by " +
                             std::to_string(capacity_) +
                             "; wait for handles, or raise queue_capacity");
  }
  // The doubled limit makes this sweep rare: its cost stays constant for each name.
  if (names_.size() >= names_max_) {
    // A job whose names never return must not collect them.
    std::erase_if(names_, [](const auto& each) { return !each.second.is_open; });
    names_max_ = std::max(kClosedNamesMin, 2 * names_.size());
  }
  for (const Request& request : requests) {
    const auto [found, is_new] = names_.try_emplace(KeyOf(request));
    NamedTensor& named = found->second;
    if (is_new) named.recorded = record_.NameOf(request.name);
    if (named.is_open) {
      // All or none: the caller gets one error and may submit all of them again.
      for (NamedTensor* each : opened) each->is_open = false;
      open_names_ -= opened.size();
      return InvalidArgument(std::string(Name(request.signature.kind)) + " '" + request.name +
                             "' on rank " + std::to_string(rank_) +
                             ": a request of this name is still in flight: names tell tensors "
                             "apart; wait for its handle first, or use another name");
    }
    named.is_open = true;
    ++open_names_;
    opened.push_back(&named);
  }
  return opened;
}

bool HandleTable::IsOpen(const Request& request) const {
  MutexLock lock(names_mutex_);
  const auto found = names_.find(KeyOf(request));
  return found != names_.end() && found->second.is_open;
}

void HandleTable::CloseName(const PendingRequest& request) {
  MutexLock lock(names_mutex_);
  // The count falls before the waiter wakes, so a caller at the limit of the queue can submit as
  // soon as it has waited.
  --open_names_;
  if (IsNumbered(request.request.name)) {
    // Numbered names do not come again.
    names_.erase(KeyOf(request.request));
  } else {
    request.named.is_open = false;
  }
}

void HandleTable::Forget(std::span<const std::shared_ptr<PendingRequest>> requests) {
  for (const auto& pending : requests) {
    CloseName(*pending);
    record_.Forget(pending->handle.value);
    Shard& shard = ShardOf(pending->handle);
    MutexLock lock(shard.mutex);
    // The request was never visible to the engine thread, which is why no hold is dropped here.
    shard.requests.erase(pending->handle.value);
  }
}

void HandleTable::Launch(const std::shared_ptr<PendingRequest>& request, const DeviceEvent& event) {
  // The event is listed before the count falls: whoever sees the request launched finds all of its
  // events.
  request->Await(event);
  // Several lanes may launch parts of one request; the last of them makes the result visible.
  if (!request->DropUnlaunched()) return;
  CloseName(*request);  // before the waiter wakes: it may submit the same name at once
  request->Launch();
}

void HandleTable::Drop(const std::shared_ptr<PendingRequest>& request, const DeviceEvent* event) {
  if (DropQuietly(request, event)) Notify(*request);
}

bool HandleTable::DropQuietly(const std::shared_ptr<PendingRequest>& request,
                              const DeviceEvent* event) {
  // The event goes with the lane's memory; a stream that waits for the request from here on needs
  // it no more.
  if (event != nullptr) request->Arrive(*event);
  const bool is_last_launch = event == nullptr && request->DropUnlaunched();
  if (is_last_launch) CloseName(*request);
  // Each partition holds the request; the thread that drops the last hold finishes it, whichever
  // lane that is.
  if (!request->DropHold()) {
    if (is_last_launch) request->Launch();  // devices do the rest
    return false;
  }
  record_.Finished(*request);
  request->Finish();
  // After Finish: WaitAny reads the number before it looks, so it misses none.
  finished_.fetch_add(1, std::memory_order_release);
  any_finished_.Notify();
  return request->request.completion.notify != nullptr;
}

void HandleTable::Notify(const PendingRequest& request) {
  // No lock of the engine is held here: the callback is the program's, and may submit, wait or stop
  // the engine.
  const Completion& completion = request.request.completion;
  const Status& status = request.status();
  completion.notify(completion.context, static_cast<int32_t>(status.code()),
                    status.message().c_str());
}

Result<std::shared_ptr<PendingRequest>> HandleTable::Find(Handle handle) const {
  const Shard& shard = ShardOf(handle);
  MutexLock lock(shard.mutex);
  auto found = shard.requests.find(handle.value);
  if (found == shard.requests.end()) {
    return InvalidArgument("rank " + std::to_string(rank_) + " has no handle " +
                           std::to_string(handle.value) +
                           ": it was never given out, or released; keep a handle until its "
                           "result is no longer needed");
  }
  return found->second;
}

Status HandleTable::Wait(Handle handle, Deadline deadline) {
  RABIT_ASSIGN_OR_RETURN(std::shared_ptr<PendingRequest> request, Find(handle));
  if (!request->is_finished()) {
    RABIT_RETURN_IF_ERROR(Await(*request, &PendingRequest::WaitFinished, deadline));
  }
  return request->status();
}

Status HandleTable::WaitOnStream(Handle handle, void* stream, Deadline deadline) {
  RABIT_ASSIGN_OR_RETURN(std::shared_ptr<PendingRequest> request, Find(handle));
  if (!request->is_launched()) {
    RABIT_RETURN_IF_ERROR(Await(*request, &PendingRequest::WaitLaunched, deadline));
  }
  return request->OrderBefore(stream).Annotated(request->Describe(rank_));
}

Status HandleTable::Await(PendingRequest& request, bool (PendingRequest::*wait)(Deadline),
                          Deadline deadline) {
  const int64_t started_ns = NowNs();
  clock_.Enter(OverlapClock::kWaiting);
  // This thread holds only its own reference of the request: another thread may release the handle
  // meanwhile.
  const bool has_come = (request.*wait)(deadline);
  clock_.Leave(OverlapClock::kWaiting);
  if (has_come) return Status();
  return TimedOut(request.Describe(rank_) + " is not done after " +
                  std::to_string((NowNs() - started_ns) / 1'000'000) +
                  " ms: another rank may not have submitted it; wait again, or look at the "
                  "stall report");
}

Result<int> HandleTable::WaitAny(std::span<const Handle> handles, uint64_t* news,
                                 Deadline deadline) {
  std::vector<std::shared_ptr<PendingRequest>> requests;
  requests.reserve(handles.size());
  for (const Handle handle : handles) {
    RABIT_ASSIGN_OR_RETURN(requests.emplace_back(), Find(handle));
  }
  int which = -1;
  uint64_t seen = 0;
  const auto is_over = [&] {
    seen = finished_.load(std::memory_order_acquire);  // before the look at each
    const auto found = std::find_if(requests.begin(), requests.end(),
                                    [](const auto& each) { return each->is_finished(); });
    if (found != requests.end()) which = static_cast<int>(found - requests.begin());
    return which >= 0 || (news != nullptr && seen != *news);
  };
  clock_.Enter(OverlapClock::kWaiting);
  const bool is_found = any_finished_.Wait(is_over, deadline);
  clock_.Leave(OverlapClock::kWaiting);
  if (!is_found) {
    return TimedOut("rank " + std::to_string(rank_) + ": none of " +
                    std::to_string(handles.size()) +
                    " requests has finished in time: other ranks may not have submitted them; "
                    "wait again, or look at the stall report");
  }
  if (news != nullptr) *news = seen;
  return which;
}

Result<bool> HandleTable::IsDone(Handle handle) const {
  RABIT_ASSIGN_OR_RETURN(std::shared_ptr<PendingRequest> request, Find(handle));
  return request->is_finished();
}

Result<HandleOutput> HandleTable::Output(Handle handle) const {
  RABIT_ASSIGN_OR_RETURN(std::shared_ptr<PendingRequest> request, Find(handle));
  if (!request->is_launched()) {
    return InvalidArgument(request->Describe(rank_) +
                           " has no output yet: it is still in flight; wait for its handle first");
  }
  if (request->is_finished() && !request->status().ok()) return request->status();
  return request->output();
}

void HandleTable::Release(Handle handle) {
  Shard& shard = ShardOf(handle);
  std::shared_ptr<PendingRequest> last;  // freed outside the lock
  MutexLock lock(shard.mutex);
  auto found = shard.requests.find(handle.value);
  if (found == shard.requests.end()) return;
  last = std::move(found->second);
  shard.requests.erase(found);
}

size_t HandleTable::open_count() const {
  MutexLock lock(names_mutex_);
  return open_names_;
}

}  // namespace rabit
