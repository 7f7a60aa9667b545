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
#include "base/json_writer.h"
#include "base/result.h"
#include "control/agreement_wire.h"
#include "control/tensor_key.h"

namespace rabit {

class Announcer {
 public:
  Announcer(int rank, int size);

  void AddGroup(const Group& group) { groups_[group.id] = group; }
  void RemoveGroup(GroupId group);

  // Entries that cannot be sent come back through TakeLocal.
  AnnounceMessage Prepare(const Announcement& mine, int64_t now_us);
  // False: `message` says nothing that rank 0 does not know, and need not be sent.  True is a
  // promise to send it.
  bool HasNews(const AnnounceMessage& message);

  // What rank 0 must hear of a tensor that this rank has turned down; empty: nobody waits for it.
  std::optional<RefusalMessage> Refuse(const TensorKey& key, const Status& why);

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
  void WriteCounters(JsonWriter& json) const;  // members of an object

 private:
  enum class Open { kNo, kCached, kFull };
  struct Known {  // index = id; key.name is empty where the id is free
    TensorKey key;
    Signature agreed;
    Signature own;  // this rank's, as it was last announced
  };
  // Of the same tensor, what every step looks at; apart from the rest to be near its neighbours.
  struct Round {
    int64_t open_us = 0;
    int32_t token = kNoToken;
    Open open = Open::kNo;
    bool has_own = false;
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
  // Why the next round of `key` has failed on the other ranks already, once; ok: it has not.
  Status TakeFailedRound(const TensorKey& key);
  TensorId Find(const std::string& name, const Signature& signature);
  void AnnounceCached(TensorId id, const Announcement::Entry& entry, AnnounceMessage& message);
  bool BringsOwnPart(const Signature& mine, const Signature& agreed) const;
  Status CheckSendable(const Announcement::Entry& entry) const;
  void Evict(TensorId id);
  Status Define(const Definition& definition);
  // Fills `ready` and `tokens`.
  Status FillReady(AgreeMessage& message, Agreement& agreement);
  Status AppendReady(ReadyReference&& ready, std::vector<ReadyTensor>& to);
  int32_t TakeToken(TensorId id);
  Status CheckParts(const Known& known) const;
  Status FillExtents(const Known& known, ReadyTensor& tensor) const;
  void ApplyRejection(RejectMessage&& rejected, Agreement& agreement);
  const Group* FindGroup(GroupId id) const;

  const int rank_;
  std::unordered_map<GroupId, Group> groups_;
  std::vector<Known> known_;
  std::vector<Round> rounds_;  // by id, too
  std::unordered_map<TensorKey, TensorId, TensorKeyHash> by_key_;
  std::unordered_map<TensorKey, Unnamed, TensorKeyHash> unnamed_;
  std::unordered_map<std::string, std::vector<FailedRound>> failed_rounds_;
  // Rounds that this rank has turned down and rank 0 has not answered yet.
  std::unordered_map<TensorKey, int, TensorKeyHash> refused_;
  TensorKey searched_;  // kept for its memory
  bool has_joined_ = false;
  // What the last agreement said if it was nothing but ids, as long as these mean the same.
  std::vector<TensorId> last_plain_;
  ReadyTensors last_ready_;
  AnnounceMessage resend_;
  Agreement local_;
  uint64_t cycle_ = 0;
  BucketCounts credit_;
  BucketCounts told_done_;
  bool told_stop_ = false;
  Counters counters_;
};

}  // namespace rabit
