// Controller: negotiates what is ready everywhere, in one order.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/group.h"
#include "base/json_writer.h"
#include "base/result.h"
#include "base/spin_budget.h"
#include "base/status.h"
#include "control/agreement.h"
#include "control/schedule_digest.h"
#include "control/tensor_key.h"

namespace rabit {

// Event driven: Announce never waits, Await returns when the network, Wake or the deadline says
// so.  Engine thread only, except Wake.
class Controller {
 public:
  virtual ~Controller() = default;
  // A name is announced again, in the same group (for messages: between the same pair), only after
  // an agreement has named it ready or rejected.
  virtual Status Announce(const Announcement& mine) = 0;
  // The next agreement in order; empty when woken or at the deadline.  An error is engine-wide:
  // a lost rank (kPeerLost, with culprit), a stall past the abort time, a stranger's wire version.
  virtual Result<std::optional<Agreement>> Await(Deadline deadline) = 0;
  // Who calls Await from now on; a hint how long to spin.
  virtual void SetWaiter(Waiter waiter) { (void)waiter; }
  // Any thread; never blocks.
  virtual void Wake() = 0;
  // Tells every rank why this one gives up, so that they report the cause and not its
  // consequences.  Best effort, at once.
  virtual void Abandon(const Status& why) = 0;
  // This rank has turned its own tensor down before it was announced: the others are told, so that
  // they do not wait for it.  The next announcement of it belongs to the next round.
  virtual void Refuse(const TensorKey& key, const Status& why) = 0;
  // A backend is of no use any more on this rank, but the job goes on: an agreement tells all
  // ranks, with the first reason that rank 0 has heard.
  virtual void FailBackend(const BackendFailure& failure) = 0;
  // What this rank has made of the agreements up to one that compares; every rank calls
  // it when it has carried that one out.  Ranks that differ end the job with kMismatch.
  virtual void Compare(const ScheduleDigest& mine) = 0;
  // A group that later signatures may name.  Says nothing to other ranks: no rank may announce a
  // tensor of it before all ranks have called this, with the same group.
  virtual void AddGroup(const Group& group) = 0;
  // Every rank has agreed to name it no more, and nothing of it is open here.
  virtual void RemoveGroup(GroupId group) = 0;
  // Members of an object: cycles, bytes, cache hits; on rank 0 also arrival skew per rank and
  // tensor.
  virtual void WriteStatistics(JsonWriter& json) const = 0;
  // What is waiting for whom, one line each ("'conv1.weight' waits 12 s for rank 3"); for reports.
  virtual std::vector<std::string> Waiting() const = 0;
};

}  // namespace rabit
