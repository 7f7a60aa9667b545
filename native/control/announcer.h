// Announcer: one rank's side of the negotiation.  Turns what the engine announces into messages
// that use ids where it can, and messages of rank 0 into agreements.  Pure: no threads, no sockets,
// no clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/group.h"
#include "base/result.h"
#include "control/agreement_wire.h"
#include "control/tensor_key.h"

namespace rabit {

class Announcer {
 public:
  Announcer(int rank, int size);

  void AddGroup(const Group& group);

  // Entries that cannot be sent come back through TakeLocal.
  AnnounceMessage Prepare(const Announcement& mine, int64_t now_us);
  // False: `message` says nothing that rank 0 does not know, and need not be sent.  True is a
  // promise to send it.
  bool HasNews(const AnnounceMessage& message);

  // Agreements in order.  kInternal: it does not fit what this rank knows.
  Result<Agreement> Apply(AgreeMessage&& message);
  // What must be announced again because rank 0 took ids back while this rank used them.
  std::optional<AnnounceMessage> TakeResend();
  // Rejections that this rank decides alone, as an agreement that changes nothing else.
  std::optional<Agreement> TakeLocal();

  // What this rank announced more than `older_than_us` ago and is still open.
  std::vector<std::string> Waiting(int64_t now_us, int64_t older_than_us) const;

  struct Counters {
    uint64_t cycles = 0;
    uint64_t announced = 0;
    uint64_t announced_cached = 0;
    uint64_t rejected = 0;
    uint64_t evicted = 0;
  };
  const Counters& counters() const { return counters_; }
  std::string CountersJson() const;  // "cycles":…, without braces

 private:
  enum class Open { kNo, kCached, kFull };
  struct Known {  // index = id; key.name is empty where the id is free
    TensorKey key;
    Signature agreed;
    Signature own;  // this rank's, as it was last announced
    bool has_own = false;
    Open open = Open::kNo;
    int64_t open_us = 0;
    int32_t token = kNoToken;
    TensorId followed_by = -1;  // what this rank announced next, the last time
  };
  struct Unnamed {  // announced in full, no id yet
    Signature own;
    int64_t open_us = 0;
    int32_t token = kNoToken;
  };
  struct FailedRound {  // of a name that this rank has not announced yet
    TensorKey key;
    Status why;
  };

  void PrepareEntry(const Announcement::Entry& entry, int64_t now_us, AnnounceMessage& message);
  bool RejectLocally(const Announcement::Entry& entry);
  TensorId Find(const std::string& name, const Signature& signature) const;
  void AnnounceCached(TensorId id, const Signature& signature, AnnounceMessage& message);
  Status CheckSendable(const Announcement::Entry& entry) const;
  void Evict(TensorId id);
  Status Define(const Definition& definition);
  Status AppendReady(ReadyReference&& ready, Agreement& agreement);
  Status FillExtents(const Known& known, ReadyTensor& tensor) const;
  void ApplyRejection(RejectMessage&& rejected, Agreement& agreement);
  const Group* FindGroup(GroupId id) const;

  const int rank_;
  std::unordered_map<GroupId, Group> groups_;
  std::vector<Known> known_;
  std::unordered_map<TensorKey, TensorId, TensorKeyHash> by_key_;
  std::unordered_map<TensorKey, Unnamed, TensorKeyHash> unnamed_;
  std::unordered_map<std::string, std::vector<FailedRound>> failed_rounds_;
  TensorId last_announced_ = -1;
  bool has_joined_ = false;
  AnnounceMessage resend_;
  Agreement local_;
  uint64_t cycle_ = 0;
  uint64_t credit_ = 0;
  uint64_t told_done_ = 0;
  bool told_stop_ = false;
  Counters counters_;
};

}  // namespace rabit
