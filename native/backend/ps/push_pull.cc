#include "backend/ps/push_pull.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "arithmetic/reduce.h"

namespace rabit {
namespace {

constexpr int64_t kFinishLag = kPsChunksInFlight - 1;
constexpr auto kLookAroundEvery = std::chrono::milliseconds(20);

// Many chunks, so that pushing, summing and pulling overlap, but not so small that the cost per
// message shows.
int64_t ChunksOf(const Slice& slice, DType dtype, int64_t chunk_bytes_most) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(dtype));
  const int64_t chunk_bytes =
      std::clamp(slice.count * element_bytes / 8, kPsChunkBytesMin, chunk_bytes_most);
  const int64_t chunk_count = chunk_bytes / element_bytes;
  return (slice.count + chunk_count - 1) / chunk_count;
}

}  // namespace

int64_t PsChunksOf(std::span<const Slice> slices, DType dtype, int64_t chunk_bytes_most) {
  int64_t chunks = 1;
  for (const Slice& slice : slices) {
    chunks = std::max(chunks, ChunksOf(slice, dtype, chunk_bytes_most));
  }
  return chunks;
}

Bytes PushPull::Part::Chunk(int64_t k) const {
  const auto chunk_bytes = static_cast<size_t>(header.chunk_count) * SizeOf(header.dtype);
  const size_t begin = static_cast<size_t>(k) * chunk_bytes;
  return bytes.subspan(begin, std::min(chunk_bytes, bytes.size() - begin));
}

PushPull::PushPull(const PushPullArgs& args, std::span<const Slice> slices, Blame blame)
    : args_(args),
      blame_(std::move(blame)),
      inputs_(args.members.size()),
      headers_(slices.size()),
      pushes_(slices.size() * static_cast<size_t>(kPsChunksInFlight)),
      pulls_(slices.size() * static_cast<size_t>(kPsChunksInFlight)),
      arriving_(args.members.size() * static_cast<size_t>(kPsChunksInFlight)),
      leaving_(args.members.size() * static_cast<size_t>(kPsChunksInFlight)) {
  const DType dtype = args.in_out.dtype;
  const auto members = static_cast<int>(args.members.size());
  auto* const data = static_cast<std::byte*>(args.in_out.data);
  const int64_t chunks = PsChunksOf(slices, dtype, args.chunk_bytes_most);
  for (const Slice& slice : slices) {
    const size_t begin = static_cast<size_t>(slice.begin) * SizeOf(dtype);
    const size_t bytes = static_cast<size_t>(slice.count) * SizeOf(dtype);
    const int rank = slice.place < members ? args.members[static_cast<size_t>(slice.place)] : -1;
    Part part{rank, slice.place - members, Bytes(data + begin, bytes), {}};
    Tag tag = args.tag;
    if (slice.place < members) {
      part.place = -1;
    } else {
      part.rank = args.first_server + RouteOf(part).holder;
      // Several places may be held by one server after a loss; the place in the tag keeps their
      // messages apart.
      tag = PushTag(args.tag, part.place);
    }
    const int64_t chunk_count =
        slice.chunk_count > 0 ? slice.chunk_count : (slice.count + chunks - 1) / chunks;
    part.header = {tag,     slice.count, chunk_count, dtype,
                   args.op, args.mode,   args.key,    args.epilogue};
    part.encoded = Encode(part.header);
    if (slice.place == args.my_index) {
      mine_ = part;
    } else {
      parts_.push_back(part);
    }
  }
  const auto first = static_cast<size_t>(args.my_index) % std::max<size_t>(parts_.size(), 1);
  // Each rank begins with another server, or all of them would send to the first one at once.
  std::rotate(parts_.begin(), parts_.begin() + static_cast<ptrdiff_t>(first), parts_.end());
}

Status PushPull::Run() {
  if (mine_.has_value()) {
    const size_t each = mine_->Chunk(0).size() * static_cast<size_t>(kPsChunksInFlight);
    // Scratch of the lane: a call of the same lane comes only after this one is over.
    RABIT_ASSIGN_OR_RETURN(pushed_, args_.scratch.Get(each * args_.members.size()));
  }
  RABIT_RETURN_IF_ERROR(MeetHolders());
  // One header for all members: the server learns from it how long the chunks are.
  if (args_.my_index == 0) Announce();
  int64_t longest = mine_.has_value() ? mine_->chunks() : 0;
  for (const Part& part : parts_) longest = std::max(longest, part.chunks());
  // A few chunks are under way at a time; finishing lags behind, so that links and servers stay
  // busy.
  for (int64_t k = 0; k < longest + kFinishLag; ++k) {
    Expect(k);
    PushAndPull(k);
    if (k >= kFinishLag) RABIT_RETURN_IF_ERROR(Finish(k - kFinishLag));
  }
  RABIT_RETURN_IF_ERROR(FinishAll());
  for (const Part& part : parts_) {
    // Counted only when all of it has come: a server that takes over compares this number with its
    // own.
    if (IsServer(part)) ++RouteOf(part).pushes;
  }
  return is_refused_ ? Refused() : Status();
}

Status PushPull::Refused() const {
  return InvalidArgument(
      "rank " + std::to_string(args_.endpoints.rank()) + ": the servers refused an update of " +
      std::to_string(args_.in_out.count) + " elements of " + std::string(Name(args_.in_out.dtype)) +
      " (key " + std::to_string(args_.key) +
      "): under this key they keep another number of elements, another type, or nothing yet. Fill "
      "it first, and give tensors of another size or type another key");
}

// A server may have been lost since the last push to it.
Status PushPull::MeetHolders() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (IsServer(part) && args_.holders.has_lost(part.rank - args_.first_server)) {
      RABIT_RETURN_IF_ERROR(MoveOn(i, Status()));
    }
  }
  return Status();
}

void PushPull::Announce() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (!IsServer(part) || part.is_told) continue;
    headers_.Start(i,
                   args_.endpoints.Send(part.rank, TagOf(part, PlaceStep::kHeader), part.encoded));
  }
}

void PushPull::PushAndPull(int64_t k) {
  issued_ = k + 1;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (k < parts_[i].chunks()) StartChunk(i, k);
  }
}

// The sum lands where the chunk is sent from: there is none before all of the chunk has come.
void PushPull::StartChunk(size_t i, int64_t k) {
  const Part& part = parts_[i];
  const size_t slot = SlotOf(k, i, parts_.size());
  // The receive is posted before the push, or an answer that is fast would be kept aside and
  // copied.
  pulls_.Start(slot, args_.endpoints.Recv(part.rank, part.header.tag + 1, part.Chunk(k)));
  if (k < part.first_push) {
    pushes_.Start(slot, Status());
  } else {
    pushes_.Start(slot, args_.endpoints.Send(part.rank, part.header.tag, part.Chunk(k)));
  }
}

bool PushPull::IsLoss(const Part& part, const Status& status) const {
  return args_.holders.can_lose() && IsServer(part) && IsLossOf(status, part.rank);
}

// From a server that is lost to the next one that has its place.  `why`: how that was found.
Status PushPull::MoveOn(size_t i, const Status& why) {
  Part& part = parts_[i];
  const int64_t end = std::min(issued_, part.chunks());
  // Sums come in order, and those that have come count.
  // Only what is known to have arrived is kept; the rest is asked for again.
  int64_t at = finished_;
  while (at < end && pulls_.Wait(SlotOf(at, i, parts_.size()), args_.deadline).ok()) ++at;
  headers_.Start(i, Status());
  for (int64_t k = std::min(finished_, end); k < end; ++k) {
    pulls_.Start(SlotOf(k, i, parts_.size()), Status());
    pushes_.Start(SlotOf(k, i, parts_.size()), Status());
  }
  Result<PushPosition> from = PushPosition();
  do {
    args_.holders.Lose(part.rank - args_.first_server, from.ok() ? why : from.status());
    if (at == part.chunks()) return Status();  // The next push finds the place.
    const int holder = args_.holders.Of(part.place);
    if (holder < 0) {
      return Failed(part.rank, PeerLost(part.rank, "and so are all others that could sum instead"));
    }
    part.rank = args_.first_server + holder;
    from = Resume(part, at);
  } while (!from.ok() && IsLoss(part, from.status()));
  if (!from.ok()) return Failed(part.rank, from.status());
  const uint64_t push = RouteOf(part).pushes;
  part.first_push = from->push > push ? part.chunks() : static_cast<int64_t>(from->chunk);
  part.is_told = true;
  RouteOf(part).holder = part.rank - args_.first_server;
  for (int64_t k = at; k < end; ++k) StartChunk(i, k);
  return Status();
}

// Returns from where chunks must be pushed; the sums before that come without.
Result<PushPosition> PushPull::Resume(const Part& part, int64_t at) {
  const PushPosition mine{RouteOf(part).pushes, static_cast<uint64_t>(at)};
  const PlacedPushBytes question = Encode(PlacedPush{part.header, mine});
  PushPositionBytes bytes{};
  Operation answered = args_.endpoints.Recv(part.rank, TagOf(part, PlaceStep::kAnswer), bytes);
  Operation asked = args_.endpoints.Send(part.rank, TagOf(part, PlaceStep::kResume), question);
  RABIT_RETURN_IF_ERROR(asked.Wait(args_.deadline));
  RABIT_RETURN_IF_ERROR(answered.Wait(args_.deadline));
  const PushPosition from = DecodePushPosition(bytes);
  // A copy that lags behind what this rank has would give it other sums than the other ranks.
  if (from != kNowhere && from >= mine) return from;
  return Status(
             Code::kPeerLost,
             "it took over what server " +
                 std::to_string(args_.server_numbers[static_cast<size_t>(part.place)]) +
                 " had, which is lost, and has no copy of it: the server that had one is lost as "
                 "well. Start servers on hosts that do not fail together")
      .WithCulprit(args_.first_server + part.place);
}

Bytes PushPull::Pushed(int64_t k, size_t member, size_t bytes) const {
  const size_t each = mine_->Chunk(0).size();
  return Bytes(pushed_ + SlotOf(k, member, args_.members.size()) * each, bytes);
}

void PushPull::Expect(int64_t k) {
  if (!mine_.has_value() || k >= mine_->chunks()) return;
  for (size_t i = 0; i < args_.members.size(); ++i) {
    if (static_cast<int>(i) == args_.my_index) continue;
    const Bytes into = Pushed(k, i, mine_->Chunk(k).size());
    arriving_.Start(SlotOf(k, i, args_.members.size()),
                    args_.endpoints.Recv(args_.members[i], args_.tag, into));
  }
}

// Chunk k of this rank's own slice.  The sum is sent from the tensor.
Status PushPull::Sum(int64_t k) {
  if (!mine_.has_value() || k >= mine_->chunks()) return Status();
  const size_t members = args_.members.size();
  const Bytes sum = mine_->Chunk(k);
  for (size_t i = 0; i < members; ++i) {
    const size_t slot = SlotOf(k, i, members);
    RABIT_RETURN_IF_ERROR(arriving_.Wait(slot, args_.deadline));
    // The slot's last sum must have left before its memory gets the next chunk.
    RABIT_RETURN_IF_ERROR(leaving_.Wait(slot, args_.deadline));
    const bool is_mine = static_cast<int>(i) == args_.my_index;
    inputs_[i] = is_mine ? sum.data() : Pushed(k, i, sum.size()).data();
  }
  if (args_.mode == PushMode::kCoded) {
    RABIT_RETURN_IF_ERROR(args_.adder->Add(inputs_, sum));
  } else {
    const DType dtype = mine_->header.dtype;
    Reduce(args_.op, dtype, inputs_, sum.data(), static_cast<int64_t>(sum.size() / SizeOf(dtype)),
           args_.epilogue);
  }
  for (size_t turn = 1; turn < members; ++turn) {
    // Beginning with the next rank spreads the load over the receivers.
    const size_t i = (static_cast<size_t>(args_.my_index) + turn) % members;
    leaving_.Start(SlotOf(k, i, members),
                   args_.endpoints.Send(args_.members[i], args_.tag + 1, sum));
  }
  return Status();
}

Status PushPull::Failed(int rank, const Status& status) const {
  return rank >= args_.first_server ? blame_(rank - args_.first_server, status) : status;
}

Status PushPull::LookAround() {
  const Deadline now = std::chrono::steady_clock::now();
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (int64_t k = finished_; k < std::min(issued_, parts_[i].chunks()); ++k) {
      const Status over = pulls_.Wait(SlotOf(k, i, parts_.size()), now);
      if (!IsLoss(parts_[i], over)) continue;
      RABIT_RETURN_IF_ERROR(MoveOn(i, over));
      break;
    }
  }
  return Status();
}

Status PushPull::Wait(OperationSlots& slots, int64_t k) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (k >= parts_[i].chunks()) continue;
    for (;;) {
      // A server that takes over a place waits for all members: one that waits for one place must
      // not miss that another one is to be found elsewhere.
      const Deadline look = args_.holders.can_lose()
                                ? std::min(args_.deadline, After(kLookAroundEvery))
                                : args_.deadline;
      const Status over = slots.Wait(SlotOf(k, i, parts_.size()), look);
      if (over.ok()) break;
      if (over.code() == Code::kTimedOut && look != args_.deadline) {
        // What this returns is final; a place that nobody can take over must not be moved again.
        RABIT_RETURN_IF_ERROR(LookAround());
        continue;
      }
      // A message of another size: none.
      if (IsUpdate() && over.code() == Code::kMismatch) {
        is_refused_ = true;
        break;
      }
      if (!IsLoss(parts_[i], over)) return Failed(parts_[i].rank, over);
      RABIT_RETURN_IF_ERROR(MoveOn(i, over));
    }
  }
  return Status();
}

// Pushes first: a server that is lost is found by them, while the sum of another one, which waits
// for workers that have found it before, may never come.
Status PushPull::Finish(int64_t k) {
  RABIT_RETURN_IF_ERROR(Wait(pushes_, k));
  RABIT_RETURN_IF_ERROR(Sum(k));
  RABIT_RETURN_IF_ERROR(Wait(pulls_, k));
  finished_ = k + 1;
  return Status();
}

Status PushPull::FinishAll() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Status told = headers_.Wait(i, args_.deadline);
    if (told.ok()) continue;
    if (!IsLoss(parts_[i], told)) return Failed(parts_[i].rank, told);
    RABIT_RETURN_IF_ERROR(MoveOn(i, told));
  }
  return leaving_.WaitAll(args_.deadline);
}

}  // namespace rabit
