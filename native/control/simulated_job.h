// SimulatedJob: all ranks' sides of a negotiation in one thread, with the messages between them
// held until the caller delivers them.  For tests of crossings and for the cost of many ranks.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/announcer.h"
#include "control/combiner.h"
#include "control/coordinator.h"
#include "transport/rank_tree.h"

namespace rabit {

// Runs the state machines that the controllers run, along the links of a tree.  The clock is
// `now_us`.
class SimulatedJob {
 public:
  static constexpr int64_t kHoldUs = 1000;

  explicit SimulatedJob(CoordinatorOptions options)
      : SimulatedJob(options, RankTree::Star(options.size)) {}
  SimulatedJob(CoordinatorOptions options, const RankTree& tree)
      : tree_(tree), coordinator_(options) {
    for (int rank = 0; rank < options.size; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(rank, options.size));
      at(rank).below = RankSet(tree.Subtree(rank));
      if (rank > 0 && !tree.is_leaf(rank)) at(rank).combiner.emplace(rank, tree, kHoldUs);
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Coordinator& coordinator() { return coordinator_; }
  int64_t now_us = 0;
  uint64_t messages_to_root = 0;
  uint64_t bytes_to_root = 0;    // of all together
  uint64_t bytes_from_root = 0;  // to one rank

  void AddGroup(Group group) {
    for (int rank = 0; rank < size(); ++rank) {
      group.my_index = group.IndexOf(rank);
      at(rank).announcer.AddGroup(group);
      if (at(rank).combiner) at(rank).combiner->AddGroup(group);
      coordinator_.OnGroup(rank, {group.id, group.ranks});
    }
  }

  bool Repeat(int rank, uint64_t version, int32_t token) {
    return at(rank).announcer.Repeat(version, token);
  }
  // Puts the message on its way.
  void Announce(int rank, const Announcement& mine) {
    const AnnounceMessage message = at(rank).announcer.Prepare(mine, now_us);
    if (auto local = at(rank).announcer.TakeLocal()) at(rank).agreed.push_back(std::move(*local));
    if (at(rank).announcer.HasNews(message)) Post(rank, message);
  }

  // The rank turns its own tensor down.
  void Refuse(int rank, const TensorKey& key, const Status& why) {
    const std::optional<RefusalMessage> refusal = at(rank).announcer.Refuse(key, why);
    if (!refusal) return;
    if (at(rank).combiner) {
      at(rank).combiner->OnOwnRefusal(*refusal);
      return PostCombined(rank);
    }
    Encode(*refusal, at(rank).up.emplace_back());
    CountUp(rank);
  }

  bool HasUp(int rank) { return !at(rank).up.empty(); }
  bool HasDown(int rank) { return !at(rank).down.empty(); }

  // Delivers one message of `rank` to its parent, whose answer is put on its way.
  Status DeliverUp(int rank) {
    const std::vector<std::byte> message = std::move(at(rank).up.front());
    at(rank).up.pop_front();
    const int parent = std::max(tree_.parent(rank), 0);
    if (parent > 0) {
      RABIT_RETURN_IF_ERROR(at(parent).combiner->OnMessage(rank, message, now_us));
      PostCombined(parent);
      return {};
    }
    RABIT_ASSIGN_OR_RETURN(const ControlType type, TypeOf(message));
    if (type == ControlType::kBundle) {
      coordinator_.OnBundle(rank, at(rank).below, message, now_us);
    } else {
      coordinator_.OnMessage(rank, message, now_us);
    }
    SendDown();
    return coordinator_.failure();
  }

  // What the coordinator has decided, to rank 0 itself and to its children.
  void SendDown() {
    while (auto message = coordinator_.TakeAgreement()) {
      auto shared = std::make_shared<std::vector<std::byte>>();
      Encode(*message, *shared);
      bytes_from_root += shared->size();
      at(0).down.push_back(shared);
      for (int child : tree_.children(0)) at(child).down.push_back(shared);
    }
  }

  // Delivers one message of the parent; the agreement lands in agreed(rank).
  Status DeliverDown(int rank) {
    const Bytes message = std::move(at(rank).down.front());
    at(rank).down.pop_front();
    RABIT_ASSIGN_OR_RETURN(AgreeMessage agreed, DecodeAgree(*message));
    if (at(rank).combiner) {
      at(rank).combiner->OnAgreement(agreed);
      for (int child : tree_.children(rank)) at(child).down.push_back(message);
      PostCombined(rank);
    }
    RABIT_ASSIGN_OR_RETURN(Agreement agreement, at(rank).announcer.Apply(std::move(agreed)));
    if (const auto again = at(rank).announcer.TakeResend()) Post(rank, *again);
    at(rank).agreed.push_back(std::move(agreement));
    return {};
  }

  // Gives what is held for too long to the parent.
  void Tick(int rank) {
    if (!at(rank).combiner) return;
    at(rank).combiner->OnTick(now_us);
    PostCombined(rank);
  }

  // Delivers everything, rank by rank.
  Status DeliverAll() {
    for (bool is_moving = true; is_moving;) {
      is_moving = false;
      for (int rank = 0; rank < size(); ++rank) {
        for (; HasUp(rank); is_moving = true) RABIT_RETURN_IF_ERROR(DeliverUp(rank));
        for (; HasDown(rank); is_moving = true) RABIT_RETURN_IF_ERROR(DeliverDown(rank));
      }
    }
    return coordinator_.failure();
  }

  std::deque<Agreement>& agreed(int rank) { return at(rank).agreed; }
  const Announcer& announcer(int rank) { return at(rank).announcer; }

 private:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  struct Rank {
    Rank(int rank, int size) : announcer(rank, size) {}
    Announcer announcer;
    std::optional<Combiner> combiner;
    RankSet below;
    std::deque<std::vector<std::byte>> up;
    std::deque<Bytes> down;
    std::deque<Agreement> agreed;
  };

  Rank& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }

  void Post(int rank, const AnnounceMessage& message) {
    if (at(rank).combiner) {
      at(rank).combiner->OnOwn(message, now_us);
      return PostCombined(rank);
    }
    Encode(message, at(rank).up.emplace_back());
    CountUp(rank);
  }

  void PostCombined(int rank) {
    std::vector<std::byte> message;
    if (!at(rank).combiner->TakeUp(message)) return;
    at(rank).up.push_back(std::move(message));
    CountUp(rank);
  }

  void CountUp(int rank) {
    if (tree_.parent(rank) > 0) return;
    ++messages_to_root;
    bytes_to_root += at(rank).up.back().size();
  }

  const RankTree tree_;
  Coordinator coordinator_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace rabit
