#include "backend/mpi/mpi_job.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace rabit {
namespace {

constexpr auto kGroupTimeout = std::chrono::seconds(30);
constexpr auto kCancelTimeout = std::chrono::milliseconds(100);
// MPI moves bytes only while it is called, so a wait calls it as often as the cores allow.  After
// this time without an end it is not the bytes that are waited for but a rank.
constexpr auto kEager = std::chrono::milliseconds(10);
constexpr auto kSleepMax = std::chrono::milliseconds(1);
constexpr int kLateness = 32;  // a sleep is at most this fraction of the time waited so far

using Clock = std::chrono::steady_clock;

}  // namespace

Result<std::shared_ptr<MpiJob>> MpiJob::Open(MpiHandles handles, const MpiJobOptions& options) {
  RABIT_ASSIGN_OR_RETURN(std::unique_ptr<MpiLibrary> library, MpiLibrary::Find(handles));
  std::shared_ptr<MpiJob> job(new MpiJob(std::move(handles), options, std::move(library)));
  if (job->library_->IsFinalized()) {
    return Unsupported("rank " + std::to_string(options.rank) +
                       ": MPI has been finalized in this process and cannot start again; shut "
                       "the engine down before MPI, or use the backend builtin");
  }
  // Before the first collective call: with other ranks than expected it would hang and not fail.
  RABIT_RETURN_IF_ERROR(job->CheckPlace());
  Group world;
  for (int rank = 0; rank < options.size; ++rank) world.ranks.push_back(rank);
  world.my_index = options.rank;
  // The parent of all: its duplicates have an error handler of their own, the program's keeps its.
  RABIT_ASSIGN_OR_RETURN(const MpiHandle base,
                         job->Duplicate(job->handles_.comm, options.deadline));
  // No lane sees the job before it is returned, so the maps are filled without the lock.
  job->collectives_[{kWorld, -1}] = base;
  for (int lane = 0; lane < options.lanes; ++lane) {
    RABIT_ASSIGN_OR_RETURN(const MpiHandle messages, job->Duplicate(base, options.deadline));
    job->messages_.push_back(messages);
    RABIT_ASSIGN_OR_RETURN(const MpiHandle collectives, job->Duplicate(base, options.deadline));
    job->collectives_[{kWorld, lane}] = collectives;
  }
  return job;
}

MpiJob::~MpiJob() {
  // After a failure MPI may hold requests of these communicators.  Freeing is collective in some
  // libraries, too, and after an abort not every rank comes to it.
  if (is_aborted() || library_->IsFinalized()) return;
  for (const auto& [key, comm] : collectives_) (void)library_->FreeComm(comm);
  for (const MpiHandle comm : messages_) (void)library_->FreeComm(comm);
}

Status MpiJob::CheckPlace() {
  int rank = 0, size = 0;
  RABIT_RETURN_IF_ERROR(library_->RankAndSize(handles_.comm, &rank, &size));
  if (rank == options_.rank && size == options_.size) return Status();
  return InvalidArgument("rank " + std::to_string(options_.rank) + " of " +
                         std::to_string(options_.size) + " is rank " + std::to_string(rank) +
                         " of " + std::to_string(size) +
                         " in MPI: the processes must be started by MPI itself. Use mpirun, srun "
                         "or 'rabitrun --launcher mpi', or the backend builtin");
}

Result<MpiHandle> MpiJob::Duplicate(MpiHandle comm, Deadline deadline) {
  // Freed by nobody if the wait fails: MPI may write to it later.
  auto copy = std::make_unique<MpiHandle>(0);
  MpiHandle request = 0;
  Status status = library_->Idup(comm, copy.get(), &request);
  if (status.ok()) {
    // The form that does not block: a rank that has died must end in a timeout and not in a hang.
    status = Wait(&request, nullptr, "duplicating a communicator on all ranks", deadline);
  }
  if (!status.ok()) {
    (void)copy.release();
    return status;
  }
  // The usual handler of MPI ends the process at the first error.
  RABIT_RETURN_IF_ERROR(library_->ReturnErrors(*copy, handles_.errors_return));
  return *copy;
}

Result<MpiHandle> MpiJob::CollectivesOf(int lane, const Group& group) const {
  std::lock_guard lock(mutex_);
  const auto found = collectives_.find({group.id, lane});
  // The handle stays valid without the lock: communicators are freed in the destructor only.
  if (found != collectives_.end()) return found->second;
  return Internal("group " + std::to_string(group.id) + " has no MPI communicator for lane " +
                  std::to_string(lane) + "; report this");
}

size_t MpiJob::communicators() const {
  std::lock_guard lock(mutex_);
  return collectives_.size() + messages_.size();
}

Result<bool> MpiJob::IsTrueOnAll(bool mine) {
  // Freed by nobody if the wait fails: MPI may write to it later.
  auto all = std::make_unique<int32_t>(mine ? 1 : 0);
  MpiHandle request = 0;
  Status status = library_->Iallreduce(
      all.get(), 1, handles_.dtypes[static_cast<size_t>(DType::kInt32)],
      handles_.ops[static_cast<size_t>(ReduceOp::kMin)], collectives_.at({kWorld, -1}), &request);
  if (status.ok()) {
    status = Wait(&request, nullptr, "comparing settings on all ranks", options_.deadline);
  }
  if (!status.ok()) {
    (void)all.release();
    return status;
  }
  return *all != 0;
}

Status MpiJob::AddGroup(const Group& group) {
  if (!group.is_member() || group.size() < 2) return Status();
  {
    std::lock_guard lock(mutex_);
    // The thread that defines a group comes here, and lanes read the map at the same time, hence the
    // lock; it is not held while ranks meet.
    if (collectives_.contains({group.id, 0})) return Status();
  }
  for (int lane = 0; lane < options_.lanes; ++lane) {
    RABIT_ASSIGN_OR_RETURN(const MpiHandle comm, CreateGroup(group, lane));
    std::lock_guard lock(mutex_);
    collectives_[{group.id, lane}] = comm;
  }
  return Status();
}

// MPI has no form of this that returns at once, so a thread that may be left behind calls it.
Result<MpiHandle> MpiJob::CreateGroup(const Group& group, int lane) {
  struct Call {
    std::vector<int> ranks;
    MpiHandle comm = 0;
    Status status;
    std::atomic<bool> is_done{false};
    WakeSignal finished;
  };
  auto call = std::make_shared<Call>();
  call->ranks = group.ranks;
  MpiHandle base = 0;
  {
    std::lock_guard lock(mutex_);
    // No lane uses this communicator, so making groups does not disturb collectives under way.
    base = collectives_.at({kWorld, -1});
  }
  const int tag = static_cast<int>(group.id % 512) * 64 + lane;  // below what MPI promises
  std::thread caller([library = library_, call, base, tag] {
    call->status = library->CreateGroup(base, call->ranks, tag, &call->comm);
    call->is_done.store(true);
    call->finished.Notify();
  });
  const bool is_done =
      call->finished.Wait([&] { return call->is_done.load(); }, After(kGroupTimeout));
  if (!is_done) {
    // The call cannot be ended from outside; everything that it touches is in `call`, which it
    // shares.
    caller.detach();
    return TimedOutAt("making the communicator of group " + std::to_string(group.id));
  }
  caller.join();
  RABIT_RETURN_IF_ERROR(call->status);
  RABIT_RETURN_IF_ERROR(library_->ReturnErrors(call->comm, handles_.errors_return));
  return call->comm;
}

Status MpiJob::TimedOutAt(std::string_view what) const {
  return TimedOut("rank " + std::to_string(options_.rank) + ": " + std::string(what) +
                  " by MPI is not finished: another rank has not come before the deadline");
}

Status MpiJob::Wait(MpiHandle* request, int64_t* received, std::string_view what,
                    Deadline deadline) {
  if (is_aborted()) return failure();
  bool is_done = false;
  // Small messages are mostly done by now, and need no place in the list.
  RABIT_RETURN_IF_ERROR(library_->Test(request, &is_done, received));
  if (is_done) return Status();
  // On this stack, and in the list until Leave: another thread may finish it up to then.
  Waiter mine{request, received, Status()};
  {
    std::lock_guard lock(polling_mutex_);
    // Others in the list may be finished and about to leave; they poll no more.
    mine.polls.store(!has_poller_);
    has_poller_ = true;
    waiters_.push_back(&mine);
    waiting_.store(static_cast<int>(waiters_.size()), std::memory_order_relaxed);
  }
  Status status = mine.polls.load() ? Status() : Sleep(mine, what, deadline);
  if (status.ok() && !mine.is_done.load()) status = Poll(mine, what, deadline);
  Leave(mine);
  // The poller may have finished the request when this thread had given up.
  return mine.is_done.load() ? mine.status : status;
}

Status MpiJob::Poll(Waiter& mine, std::string_view what, Deadline deadline) {
  const auto start = Clock::now();
  const auto spin = std::chrono::microseconds(options_.spin_us);
  bool is_done = false;
  for (;;) {
    // The clock costs as much as a question, so it is read once in eight.
    for (int i = 0; i < 8; ++i) {
      if (is_aborted()) return failure();
      RABIT_RETURN_IF_ERROR(library_->Test(mine.request, &is_done, mine.received));
      if (is_done) return Status();
    }
    // One thread calls MPI for all that wait: several would take turns at the lock of the library.
    if (waiting_.load(std::memory_order_relaxed) > 1) PollForOthers(mine);
    const auto now = Clock::now();
    if (now >= deadline) return TimedOutAt(what);
    const auto waited = now - start;
    if (waited < spin) continue;
    if (waited < kEager) {
      ::sched_yield();
      continue;
    }
    const auto sleep = std::min<Clock::duration>(waited / kLateness, kSleepMax);
    // The sleep grows with the time waited, so that its share of the latency stays the same; an
    // abort ends it.
    aborted_.Wait([this] { return is_aborted(); }, std::min(now + sleep, deadline));
  }
}

// Until the poller has finished the request, or hands over.
Status MpiJob::Sleep(Waiter& mine, std::string_view what, Deadline deadline) {
  const auto is_over = [&] { return mine.is_done.load() || mine.polls.load() || is_aborted(); };
  const bool is_in_time = mine.changed.Wait(is_over, deadline);
  if (is_aborted()) return failure();
  return is_in_time ? Status() : TimedOutAt(what);
}

void MpiJob::PollForOthers(const Waiter& mine) {
  std::lock_guard lock(polling_mutex_);
  for (Waiter* other : waiters_) {
    // A request that is done must not be tested again: MPI has freed it.
    if (other == &mine || other->is_done.load()) continue;
    bool is_done = false;
    other->status = library_->Test(other->request, &is_done, other->received);
    if (!is_done && other->status.ok()) continue;
    other->is_done.store(true);
    other->changed.Notify();  // under the lock: it must not leave before this is over
  }
}

void MpiJob::Leave(Waiter& mine) {
  std::lock_guard lock(polling_mutex_);
  std::erase(waiters_, &mine);
  waiting_.store(static_cast<int>(waiters_.size()), std::memory_order_relaxed);
  // A thread that polled hands over to another one before it goes, or all of them would sleep on.
  if (!mine.polls.load()) return;
  for (Waiter* other : waiters_) {
    if (other->is_done.load()) continue;
    other->polls.store(true);
    other->changed.Notify();
    return;
  }
  has_poller_ = false;
}

bool MpiJob::CancelReceive(MpiHandle* request) {
  if (library_->IsFinalized() || !library_->Cancel(*request).ok()) return false;
  const Deadline deadline = After(kCancelTimeout);
  bool is_done = false;
  while (library_->Test(request, &is_done, nullptr).ok()) {
    // A cancelled request still has to be completed before its buffer may go.
    if (is_done) return true;
    if (Clock::now() >= deadline) return false;
    ::sched_yield();
  }
  return false;
}

void MpiJob::Abort(Status why) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = std::move(why);
  }
  is_aborted_.store(true, std::memory_order_release);
  aborted_.Notify();
  // After mutex_ was let go: no thread holds both, so that their order does not matter.
  std::lock_guard lock(polling_mutex_);
  for (Waiter* waiter : waiters_) waiter->changed.Notify();
}

Status MpiJob::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace rabit
