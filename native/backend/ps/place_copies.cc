#include "backend/ps/place_copies.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/ps/wait_while_alive.h"

namespace rabit {
namespace {

// How often a server that gets copies from one looks whether another one gives some.
constexpr std::chrono::nanoseconds kLookBeforeEvery = std::chrono::milliseconds(250);
// How often a server that takes over looks for members: it cannot know who comes first.
constexpr auto kWelcomeLeast = std::chrono::milliseconds(1);
constexpr auto kWelcomeMost = std::chrono::milliseconds(100);

}  // namespace

PlaceCopies::PlaceCopies(Transport& endpoints, PlaceCrew crew, const SilenceLimit& silence)
    : endpoints_(endpoints),
      crew_(std::move(crew)),
      silence_(silence),
      behind_(crew_.mine == 0 ? 1 : crew_.chain.size()),
      acks_(KeptSums::kMost),
      resumes_(crew_.members.size()),
      copying_(KeptSums::kMost * kParts),
      resuming_(crew_.members.size()),
      answering_(crew_.members.size()),
      giving_(KeptSums::kMost * crew_.members.size()) {}

// The nearest one is waited for first: it is behind all others, and so gives copies if all others
// are lost.  But where one before it cannot reach it, that one has the place still, and gives
// copies to this server past it; then what the nearest one has is old.
Status PlaceCopies::Follow(const Chunk& apply) {
  std::vector<std::unique_ptr<Source>> sources;
  for (size_t i = crew_.mine; i-- > 0;) {
    sources.push_back(std::make_unique<Source>());
    sources.back()->rank = crew_.chain[i];
  }
  for (;;) {
    // Null: all servers before this one are lost, and the place is its own from here on.
    RABIT_ASSIGN_OR_RETURN(Source* const source, NextCopy(sources));
    if (source == nullptr) return Status();
    const Status taken = Take(*source, apply);
    if (!taken.ok() && !IsLossOf(taken, source->rank)) return taken;
  }
}

Result<PlaceCopies::Source*> PlaceCopies::NextCopy(std::vector<std::unique_ptr<Source>>& sources) {
  while (!sources.empty()) {
    const bool is_alone = sources.size() == 1;
    for (size_t i = 0; i < sources.size(); ++i) {
      Source& source = *sources[i];
      if (!source.copy.has_value()) {
        source.copy.emplace(
            endpoints_.Recv(source.rank, crew_.CopyTagOf(PlaceStep::kCopy), source.bytes));
      }
      const auto wait = [&](Deadline deadline) { return source.copy->Wait(deadline); };
      const Status come = is_alone ? WaitWhileAlive(wait)
                                   : wait(After(i == 0 ? kLookBeforeEvery : kLookBeforeEvery * 0));
      // The receive stays posted; the next look waits for the same one.
      if (come.code() == Code::kTimedOut) continue;
      // The next copy is likely to come from the same one.
      std::rotate(sources.begin(), sources.begin() + static_cast<ptrdiff_t>(i),
                  sources.begin() + static_cast<ptrdiff_t>(i) + 1);
      if (come.ok()) return sources.front().get();
      if (!IsLossOf(come, source.rank)) return come;
      Inherit(*sources.front());
      sources.erase(sources.begin());
      break;
    }
  }
  return nullptr;
}

void PlaceCopies::Inherit(Source& source) {
  // The copies that reach furthest count: a lost server may have been bypassed before its end.
  if (kept_.next() < source.kept.next()) kept_ = std::move(source.kept);
}

Status PlaceCopies::Take(Source& source, const Chunk& apply) {
  source.copy.reset();
  const int rank = source.rank;
  RABIT_ASSIGN_OR_RETURN(const PlacedPush placed,
                         DecodePlacedPush(source.bytes, static_cast<int>(crew_.members.size())));
  incoming_.resize(placed.header.bytes_of(placed.at.chunk));
  Operation data = endpoints_.Recv(rank, crew_.CopyTagOf(PlaceStep::kCopyData), incoming_);
  RABIT_RETURN_IF_ERROR(WaitWhileAlive(data));
  if (source.kept.size() > 0 && placed.at != source.kept.next()) {
    return Internal("server " + std::to_string(rank) + " gives chunk " +
                    std::to_string(placed.at.chunk) + " of push " + std::to_string(placed.at.push) +
                    " out of turn; run the same version of rabit "
                    "on every worker and server");
  }
  if (crew_.is_updated()) {
    std::vector<std::byte> changed = incoming_;  // what was pushed is kept as it is
    RABIT_RETURN_IF_ERROR(apply(placed, changed));
  }
  // Kept before it is acknowledged: the giver answers the workers as soon as it has the
  // acknowledgement.
  source.kept.Keep(placed, incoming_);
  const PushPositionBytes ack = Encode(placed.at);
  Operation answer = endpoints_.Send(rank, crew_.CopyTagOf(PlaceStep::kCopyAck), ack);
  return WaitWhileAlive(answer);
}

Result<PlaceCopies::Taken> PlaceCopies::TakeOver(const Chunk& redo) {
  Taken taken{kept_.next(), std::nullopt};
  std::vector<size_t> awaited;
  for (size_t i = 0; i < crew_.members.size(); ++i) {
    awaited.push_back(i);
    resuming_.Start(
        i, endpoints_.Recv(crew_.members[i], crew_.TagOf(PlaceStep::kResume), resumes_[i]));
  }
  // Whoever has parameters for another server has them from the start: nobody else knows them.
  StandBefore(crew_.is_updated() ? crew_.chain.size() : crew_.mine + 1);
  std::chrono::nanoseconds pause = kWelcomeLeast;
  while (!awaited.empty()) {
    std::vector<size_t> left;
    for (const size_t member : awaited) {
      const bool is_first = member == awaited.front();
      const Status come = resuming_.Wait(member, After(is_first ? pause : pause * 0));
      if (come.code() == Code::kTimedOut) {
        left.push_back(member);
        continue;
      }
      RABIT_RETURN_IF_ERROR(come);
      RABIT_ASSIGN_OR_RETURN(const bool is_served, Welcome(member, redo, taken));
      if (!is_served) left.push_back(member);
    }
    pause = left.size() < awaited.size()
                ? kWelcomeLeast
                : std::min<std::chrono::nanoseconds>(2 * pause, kWelcomeMost);
    awaited = std::move(left);
    RABIT_RETURN_IF_ERROR(LookBehind());
  }
  return taken;
}

Result<bool> PlaceCopies::Welcome(size_t member, const Chunk& redo, Taken& taken) {
  const int rank = crew_.members[member];
  RABIT_ASSIGN_OR_RETURN(
      const PlacedPush asked,
      DecodePlacedPush(resumes_[member], static_cast<int>(crew_.members.size())));
  // Parameters are where they were from the start, or on the first server behind that one.
  const bool has_all = kept_.Covers(asked.at) && !(crew_.is_updated() && crew_.mine > 1);
  if (!has_all && !crew_.is_updated() && has_next()) {
    return PeerLost(
        crew_.chain.front(),
        "workers ask for what the lost server " + std::to_string(crew_.place) +
            " had, and this one, which it could not reach, has no copies. It leaves, so "
            "that they find the place on the server behind");
  }
  answer_ = Encode(has_all ? taken.at : kNowhere);
  Operation answer = endpoints_.Send(rank, crew_.TagOf(PlaceStep::kAnswer), answer_);
  RABIT_RETURN_IF_ERROR(WaitWhileAlive(answer));
  if (!has_all) {
    resuming_.Start(member,
                    endpoints_.Recv(rank, crew_.TagOf(PlaceStep::kResume), resumes_[member]));
    return false;
  }
  const bool is_here = asked.at.push == taken.at.push;
  if (is_here && (taken.at.chunk > 0 || member == 0)) taken.header = asked.header;
  RABIT_RETURN_IF_ERROR(Give(member, asked.at, redo));
  return true;
}

Status PlaceCopies::Give(size_t member, const PushPosition& from, const Chunk& redo) {
  for (size_t i = 0; i < kept_.size(); ++i) {
    const size_t slot = kept_.SlotOf(i);
    KeptSums::Sum& sum = kept_.At(slot);
    if (sum.placed.at < from) continue;
    ConstBytes given = sum.bytes;
    if (crew_.is_updated()) {
      const Status made = redo(sum.placed, sum.bytes);
      if (made.code() == Code::kInvalidArgument) {
        given = {};  // a worker that gets nothing knows that its update was refused
      } else {
        RABIT_RETURN_IF_ERROR(made);
      }
    }
    giving_.Start(slot * crew_.members.size() + member,
                  endpoints_.Send(crew_.members[member], sum.placed.header.tag + 1, given));
  }
  return Status();
}

Status PlaceCopies::Keep(const PlacedPush& placed, ConstBytes bytes) {
  const size_t slot = kept_.next_slot(), members = crew_.members.size();
  // The slot's old sum may still be on its way to the server behind; it is overwritten next.
  RABIT_RETURN_IF_ERROR(WaitSlot(slot));
  for (size_t i = 0; i < members; ++i) {
    RABIT_RETURN_IF_ERROR(WaitWhileAlive(
        [&](Deadline deadline) { return giving_.Wait(slot * members + i, deadline); }));
  }
  incoming_.assign(bytes.begin(), bytes.end());
  kept_.Keep(placed, incoming_);
  ++uncopied_;
  if (has_next()) StartCopy(slot);
  return Status();
}

Status PlaceCopies::WaitCopied() {
  RABIT_RETURN_IF_ERROR(WaitSlot(kept_.SlotOf(kept_.size() - uncopied_)));
  --uncopied_;
  return Status();
}

Status PlaceCopies::WaitSlot(size_t slot) {
  while (has_next()) {
    const int rank = crew_.chain[behind_];
    const Status copied = copying_.WaitRange(slot * kParts, kParts, After(silence_.time));
    const bool is_silent = copied.code() == Code::kTimedOut;
    if (!is_silent && !IsLossOf(copied, rank)) return copied;
    if (is_silent && silence_.tell) silence_.tell(rank);
    StandBefore(crew_.is_updated() ? crew_.chain.size() : behind_ + 1);
  }
  return Status();
}

void PlaceCopies::StandBefore(size_t behind) {
  behind_ = behind;
  living_.reset();
  for (size_t i = 0; i < KeptSums::kMost * kParts; ++i) copying_.Start(i, Status());
  // The new server behind has none of them, so it gets all that a worker could still ask for.
  for (size_t i = 0; has_next() && i < kept_.size(); ++i) StartCopy(kept_.SlotOf(i));
}

void PlaceCopies::StartCopy(size_t slot) {
  const int rank = crew_.chain[behind_];
  const KeptSums::Sum& sum = kept_.At(slot);
  const size_t first = slot * kParts;
  copying_.Start(first, endpoints_.Send(rank, crew_.CopyTagOf(PlaceStep::kCopy), sum.encoded));
  copying_.Start(first + 1,
                 endpoints_.Send(rank, crew_.CopyTagOf(PlaceStep::kCopyData), sum.bytes));
  copying_.Start(first + 2,
                 endpoints_.Recv(rank, crew_.CopyTagOf(PlaceStep::kCopyAck), acks_[slot]));
}

Status PlaceCopies::LookBehind() {
  while (has_next()) {
    const int rank = crew_.chain[behind_];
    if (!living_.has_value()) {
      living_.emplace(endpoints_.Recv(rank, crew_.CopyTagOf(PlaceStep::kLiving), never_));
    }
    const Status living = living_->Wait(After(std::chrono::nanoseconds(0)));
    if (living.code() == Code::kTimedOut) return Status();
    if (!IsLossOf(living, rank)) return living;
    StandBefore(crew_.is_updated() ? crew_.chain.size() : behind_ + 1);
  }
  return Status();
}

}  // namespace rabit
