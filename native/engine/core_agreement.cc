// What follows from an agreement: the same on every rank.
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/kind.h"
#include "engine/agreed_result.h"
#include "engine/content_hash.h"
#include "engine/engine_core.h"
#include "engine/load.h"
#include "engine/scheduled_from.h"

namespace rabit {

void EngineCore::CarryOut(Agreement agreement, Deadline now) {
  services_.record.timeline().MarkCycle(agreement.cycle);
  // Tunables and lost backends come first: the tensors of the same agreement are cut and routed by
  // them, on every rank alike.
  if (agreement.tunables) {
    if (Status status = ApplyTunables(*agreement.tunables); !status.ok()) {
      services_.controller.Abandon(status);
      return Fail(status);
    }
  }
  if (agreement.failed_backend) {
    if (Status status = EndBackend(*agreement.failed_backend); !status.ok()) {
      services_.controller.Abandon(status);
      return Fail(status);
    }
  }
  for (const Rejection& rejection : agreement.rejected) Reject(rejection);
  const Result<ScheduledTensors> scheduled = Accept(agreement, NanosOf(now));
  if (!scheduled.ok()) {
    services_.controller.Abandon(scheduled.status());
    return Fail(scheduled.status());
  }
  if (negotiated_ > 0) services_.statistics.AddNegotiation(negotiated_, negotiation_ns_);
  negotiated_ = negotiation_ns_ = 0;
  // The joins end after the tensors of the same agreement are in flight: a rank that has joined
  // still contributes to these.
  if (agreement.last_joined >= 0) FinishJoin(agreement.last_joined);
  // Credit is that of the agreement and never this rank's own count: ranks that know more would
  // issue other buckets.
  std::vector<Bucket> buckets = services_.scheduler.Advance(*scheduled, agreement.buckets_done);
  wants_credit_ = services_.scheduler.backlog() > 0;
  output_.WantCredit(wants_credit_);
  // A bucket may finish on its lane while the next one is dispatched, so nothing below reads it
  // again.
  for (Bucket& bucket : buckets) Dispatch(std::move(bucket));
  // Every rank is at this agreement now: what they have issued by it must be the same.
  if (!agreement.compares) return;
  stuck_watch_.OnCompared(now);
  services_.controller.Compare({agreement.cycle, issued_.total(), chain_, services_.running.List(),
                                services_.callers.submissions(), AreCallersStuck(NanosOf(now))});
}

bool EngineCore::AreCallersStuck(int64_t now_ns) const {
  std::set<uint64_t> open;
  open_.ForEach(
      [&](const std::shared_ptr<PendingRequest>& pending) { open.insert(pending->handle.value); });
  return services_.callers.AllWait(now_ns,
                                   [&](Handle handle) { return open.contains(handle.value); });
}

// The scheduler is a replicated state machine, and an agreement is the same event on every rank:
// all cut and join alike from here on, whatever each has in flight.
Status EngineCore::ApplyTunables(const Tunables& tunables) {
  const int32_t started = services_.options.lanes;
  // A lane beyond those that were started has no thread: its buckets would wait there forever.
  if (tunables.lanes > started) {
    return Mismatch("rank 0 chose " + std::to_string(tunables.lanes) + " lanes, and rank " +
                    std::to_string(services_.rank) + " has started " + std::to_string(started) +
                    ": give every rank the same lanes")
        .WithCulprit(services_.rank);
  }
  ScheduleLimits limits = services_.scheduler.limits();
  if (tunables.partition_bytes >= 0) limits.partition_bytes = tunables.partition_bytes;
  if (tunables.fusion_bytes >= 0) limits.fusion_bytes = tunables.fusion_bytes;
  if (tunables.credit_bytes >= 0) limits.credit_bytes = tunables.credit_bytes;
  if (tunables.lanes > 0) limits.lanes = tunables.lanes;
  // The scheduler takes the limits between two agreements, where every rank has issued the same
  // buckets.
  services_.scheduler.SetLimits(limits);
  ++tunings_;
  return Status();
}

// Buckets of it that are issued later end in the lane, with the same error.
Status EngineCore::EndBackend(const BackendFailure& failure) {
  if (failure.backend >= static_cast<BackendId>(services_.router.backends())) {
    return Internal("rank 0 tells of backend " + std::to_string(failure.backend) + ", and rank " +
                    std::to_string(services_.rank) + " has " +
                    std::to_string(services_.router.backends()) +
                    "; install one version on all hosts")
        .WithCulprit(0);
  }
  graces_.erase(failure.backend);
  failed_backends_.push_back(failure);
  // From this agreement on, and so from the same bucket on every rank.
  avoided_backends_ |= 1u << failure.backend;
  last_ready_ = ReadyTensors();  // what is the same as before may go elsewhere
  // The routes above are changed first: a bucket that is dispatched from here on must not meet the
  // ended backend.
  RABIT_RETURN_IF_ERROR(output_.EndBackend(failure));
  if (services_.rank == 0) {
    services_.logger.Warning(
        failure.why.message() +
        ". Operations that name this backend fail from here on, all others continue "
        "without it.");
  }
  return Status();
}

void EngineCore::Reject(const Rejection& rejection) {
  std::shared_ptr<PendingRequest> pending = TakeOpen(rejection.token);
  // Of a group without this rank, or this rank has refused it by itself.
  if (pending == nullptr) return;
  // The hold of the core ends with this Drop, and the callback of the request runs after the step.
  services_.statistics.AddRejected(1);
  pending->SetError(rejection.why);
  output_.Drop(pending);
}

Result<ScheduledTensors> EngineCore::Accept(const Agreement& agreement, int64_t now_ns) {
  const ReadyTensors& ready = agreement.ready;
  if (ready.empty()) return ScheduledTensors();
  // Where nothing is in flight, slots are given out from 0 on, as in the agreement before if that
  // found nothing in flight either; then what the scheduler was told holds again.
  const bool starts_empty = in_flight_.empty();
  // Clear also makes the slots start at 0 again; without it a repeated step would get other slots
  // each time.
  if (starts_empty) in_flight_.Clear();
  const bool is_repeated = starts_empty && ready.IsSameAs(last_ready_);
  const auto accepted = std::make_shared<AgreedTensors>();
  accepted->ready = ready;
  accepted->tensors.reserve(ready.size());
  std::vector<ScheduledTensor> scheduled;
  if (!is_repeated) scheduled.reserve(ready.size());
  for (size_t i = 0; i < ready.size(); ++i) {
    const ReadyTensor& tensor = ready[i];
    const int32_t token = agreement.tokens[i];
    ++rounds_;
    // A list with a vote, or with data that it carries, is never remembered, so a repeated one has
    // neither.
    if (!is_repeated && tensor.signature.kind == Kind::kVote) {
      FinishVote(tensor, token, now_ns);
      continue;
    }
    if (!is_repeated && !tensor.data.empty()) {
      FinishCarried(tensor, token, now_ns);
      continue;
    }
    AgreedTensor& agreed = accepted->tensors.emplace_back();
    agreed = {&tensor, TakeOpen(token), now_ns};
    // This rank takes part for others; its engine thread must not leave the steps to callers that
    // may not come.
    if (agreed.request == nullptr) serves_others_ = true;
    if (agreed.request != nullptr) NoteNegotiated(tensor, *agreed.request, now_ns);
    const int64_t count = is_repeated ? last_scheduled_[i].count : AgreedCount(tensor);
    if (choice_) ObserveRound(tensor, count);
    // Not the agreed id, which may belong to another tensor before the scheduler has issued this
    // one.
    const int32_t slot =
        in_flight_.Add({std::shared_ptr<const AgreedTensor>(accepted, &agreed), count, false});
    if (is_repeated) continue;
    RABIT_ASSIGN_OR_RETURN(const int64_t multiple, CutMultipleOf(tensor));
    scheduled.push_back(
        ScheduledFrom(tensor, slot, count, multiple, IsOfAll(tensor), avoided_backends_));
  }
  if (is_repeated) return last_scheduled_;
  // Only a list that has gone to the scheduler whole has slots that mean the same the next time.
  const bool can_repeat = starts_empty && scheduled.size() == ready.size();
  last_ready_ = can_repeat ? ready : ReadyTensors();
  last_scheduled_ = ScheduledTensors(std::move(scheduled));
  return last_scheduled_;
}

// Ranks that take no part cut as well, so that they count the same buckets.
Result<int64_t> EngineCore::CutMultipleOf(const ReadyTensor& ready) const {
  const std::string& spec = ready.signature.codec;
  if (spec.empty()) return int64_t{1};
  const Result<CodecHold> codec = services_.codecs.Find(spec);
  if (codec.ok()) return (*codec)->block();
  return Mismatch(std::string(Name(ready.signature.kind)) + " '" + ready.name + "' on rank " +
                  std::to_string(services_.rank) + ": the other ranks have agreed on the codec '" +
                  spec + "', which this rank does not know (" + codec.status().message() +
                  "); install one version of rabit on all hosts")
      .WithCulprit(services_.rank);
}

// Whoever does not know a group is not in it, and that group has not every rank.
bool EngineCore::IsOfAll(const ReadyTensor& ready) const {
  if (ready.signature.group == kWorld) return true;
  const std::shared_ptr<const Group> group = services_.groups.FindEver(ready.signature.group);
  return group != nullptr && group->size() == services_.size;
}

void EngineCore::NoteNegotiated(const ReadyTensor& ready, PendingRequest& request, int64_t now_ns) {
  // A caller that drives leaves its loop when it sees this; it reads it under the same step mutex.
  request.is_agreed = true;
  ++negotiated_;
  negotiation_ns_ += now_ns - request.submitted_ns;
  services_.record.Agreed(ready, request, rounds_, now_ns);
}

// The agreement is the result: nothing is scheduled and no lane takes part.
void EngineCore::FinishVote(const ReadyTensor& ready, int32_t token, int64_t now_ns) {
  const std::shared_ptr<PendingRequest> pending = TakeOpen(token);
  if (pending == nullptr) return;  // of a group without this rank
  // What depends on the vote changes with this agreement, and so before the same bucket on every
  // rank.  Buckets that are agreed in a group that goes run on; the next Announce finds out when
  // the last one is over.
  Result<std::shared_ptr<const Group>> removed = services_.groups.TakeForce(ready);
  if (removed.ok() && *removed != nullptr) {
    removed_groups_.push_back({*std::move(removed), std::nullopt});
  }
  NoteNegotiated(ready, *pending, now_ns);
  if (removed.ok()) {
    SetResult(*pending, ready.extents[0]);
  } else {
    pending->SetError(removed.status().Annotated("rank " + std::to_string(services_.rank)));
  }
  output_.Drop(pending);
}

// The same, of a collective whose data came with the announcements.
void EngineCore::FinishCarried(const ReadyTensor& ready, int32_t token, int64_t now_ns) {
  const std::shared_ptr<PendingRequest> pending = TakeOpen(token);
  if (pending == nullptr) return;  // of a group without this rank
  NoteNegotiated(ready, *pending, now_ns);
  services_.statistics.AddCarried(static_cast<int64_t>(ready.data.size()));
  // The group is known here even if it was removed meanwhile: it is forgotten only after its last
  // bucket, and this request was open.
  SetResult(*pending, ready, *services_.groups.FindEver(ready.signature.group));
  services_.record.Carried(ready, now_ns);
  output_.Drop(pending);
}

void EngineCore::FinishJoin(int last_joined) {
  // All joins of this rank end together, as the agreement is about ranks and not about names.
  for (const std::shared_ptr<PendingRequest>& join : joins_) {
    SetResult(*join, static_cast<int32_t>(last_joined));
    output_.Drop(join);
  }
  joins_.clear();
}

void EngineCore::Dispatch(Bucket bucket) {
  BucketJob job;
  job.group = services_.groups.FindEver(bucket.group);
  // Members agree to nothing before they know their group, but others may be faster than this rank
  // in adding one that it does not belong to.
  const bool is_member = job.group != nullptr && job.group->is_member();
  bool has_request = false;
  job.items.reserve(bucket.partitions.size());
  for (const Partition& partition : bucket.partitions) {
    InFlight* const entry = in_flight_.Find(partition.tensor);
    // Slots are given out here and returned by the scheduler, both on this rank: anything else is a
    // defect of ours.
    RABIT_CHECK(entry != nullptr, "a bucket holds a tensor that was never agreed");
    entry->left -= partition.count;
    entry->has_last = entry->has_last || partition.is_last;
    PendingRequest* const request = entry->tensor->request.get();
    has_request = has_request || request != nullptr;
    if (entry->has_last && entry->left == 0) {
      // The core's hold becomes that of the last partition.
      job.items.push_back({partition, in_flight_.Take(partition.tensor).tensor});
    } else {
      // Before the job goes to its lane, which may drop its hold at once.
      if (request != nullptr) request->AddHold();
      job.items.push_back({partition, entry->tensor});
    }
  }
  const bool is_pair = TraitsOf(bucket.kind).is_pair;
  const uint64_t id = bucket.id;
  const int32_t lane_class = bucket.lane_class;
  job.bucket = std::move(bucket);
  job.hash = ContentHash(job);
  // The chain is what ranks compare when something is stuck: one number for all buckets so far.
  chain_ = MixHash(chain_, job.hash);
  ++issued_[lane_class];
  // Ranks outside of the group may not know it yet, and have nothing to run.
  if (is_member) {
    job.load = LoadOf(job);
    job.route = routes_.Of(job.bucket, job.load, *job.group);
  }
  if (!is_member || (is_pair && !has_request)) {
    for (const BucketItem& item : job.items) {
      if (item.request() != nullptr) output_.Drop(item.tensor->request);
    }
    services_.done.MarkDone(lane_class, id);  // nothing to do on this rank
    return;
  }
  output_.Run(std::move(job));
}

std::shared_ptr<PendingRequest> EngineCore::TakeOpen(int32_t token) {
  // A token comes over the network from rank 0, so it is looked up before it is taken.
  if (open_.Find(token) == nullptr) return nullptr;
  return open_.Take(token);
}

void EngineCore::ObserveRound(const ReadyTensor& ready, int64_t count) {
  const Signature& agreed = ready.signature;
  if (agreed.kind != Kind::kAllreduce) return;
  const auto bytes = count * static_cast<int64_t>(SizeOf(agreed.dtype));
  // Rank 0 alone has a choice_, and what it chooses reaches the others as tunables of an agreement;
  // the measured time must not enter the state that all ranks replicate.
  if (!choice_->OnAgreed(static_cast<size_t>(ready.id), bytes, agreed.priority)) return;
  const auto limits = choice_->OnRound(services_.statistics.link_totals());
  if (limits) Merge({limits->partition_bytes, limits->fusion_bytes, limits->credit_bytes, -1});
}

}  // namespace rabit
