// SimulatedJob: all ranks' sides of a negotiation in one thread, with the messages between them
// held until the caller delivers them.  For tests of crossings and for the cost of many ranks.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/announcer.h"
#include "control/coordinator.h"

namespace rabit {

class SimulatedJob {
 public:
  explicit SimulatedJob(CoordinatorOptions options) : coordinator_(options) {
    for (int rank = 0; rank < options.size; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(rank, options.size));
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Coordinator& coordinator() { return coordinator_; }
  int64_t now_us = 0;
  uint64_t bytes_to_root = 0;    // of all ranks together
  uint64_t bytes_from_root = 0;  // to one rank

  void AddGroup(Group group) {
    for (int rank = 0; rank < size(); ++rank) {
      group.my_index = group.IndexOf(rank);
      at(rank).announcer.AddGroup(group);
      coordinator_.OnGroup(rank, {group.id, group.ranks});
    }
  }

  // Puts the message on its way.
  void Announce(int rank, const Announcement& mine) {
    const AnnounceMessage message = at(rank).announcer.Prepare(mine, now_us);
    if (auto local = at(rank).announcer.TakeLocal()) at(rank).agreed.push_back(std::move(*local));
    if (at(rank).announcer.HasNews(message)) Post(rank, message);
  }

  bool HasUp(int rank) { return !at(rank).up.empty(); }
  bool HasDown(int rank) { return !at(rank).down.empty(); }

  // Delivers one message of `rank` to the coordinator, whose answer is put on its way.
  void DeliverUp(int rank) {
    const std::vector<std::byte> message = std::move(at(rank).up.front());
    at(rank).up.pop_front();
    coordinator_.OnMessage(rank, message, now_us);
    SendDown();
  }

  void SendDown() {
    while (auto message = coordinator_.TakeAgreement()) {
      auto shared = std::make_shared<std::vector<std::byte>>();
      Encode(*message, *shared);
      bytes_from_root += shared->size();
      for (auto& rank : ranks_) rank->down.push_back(shared);
    }
  }

  // Delivers one message of the coordinator; the agreement lands in agreed(rank).
  Status DeliverDown(int rank) {
    const auto message = std::move(at(rank).down.front());
    at(rank).down.pop_front();
    RABIT_ASSIGN_OR_RETURN(AgreeMessage agreed, DecodeAgree(*message));
    RABIT_ASSIGN_OR_RETURN(Agreement agreement, at(rank).announcer.Apply(std::move(agreed)));
    if (const auto again = at(rank).announcer.TakeResend()) Post(rank, *again);
    at(rank).agreed.push_back(std::move(agreement));
    return {};
  }

  // Delivers everything, rank by rank.
  Status DeliverAll() {
    for (bool is_moving = true; is_moving;) {
      is_moving = false;
      for (int rank = 0; rank < size(); ++rank) {
        for (; HasUp(rank); is_moving = true) DeliverUp(rank);
        for (; HasDown(rank); is_moving = true) RABIT_RETURN_IF_ERROR(DeliverDown(rank));
      }
    }
    return coordinator_.failure();
  }

  std::deque<Agreement>& agreed(int rank) { return at(rank).agreed; }
  const Announcer& announcer(int rank) { return at(rank).announcer; }

 private:
  struct Rank {
    Rank(int rank, int size) : announcer(rank, size) {}
    Announcer announcer;
    std::deque<std::vector<std::byte>> up;
    std::deque<std::shared_ptr<const std::vector<std::byte>>> down;
    std::deque<Agreement> agreed;
  };

  Rank& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }

  void Post(int rank, const AnnounceMessage& message) {
    Encode(message, at(rank).up.emplace_back());
    bytes_to_root += at(rank).up.back().size();
  }

  Coordinator coordinator_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace rabit
