#include "backend/ps/push_pull.h"

#include <algorithm>
#include <utility>

#include "arithmetic/reduce.h"

namespace rabit {
namespace {

constexpr int64_t kFinishLag = kPsChunksInFlight - 1;

// Many chunks, so that pushing, summing and pulling overlap, but not so small that the cost per
// message shows.
int64_t ChunksOf(const Slice& slice, DType dtype, int members) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(dtype));
  const int64_t chunk_bytes =
      std::clamp(slice.count * element_bytes / 8, kPsChunkBytesMin, PsChunkBytesMax(members));
  const int64_t chunk_count = chunk_bytes / element_bytes;
  return (slice.count + chunk_count - 1) / chunk_count;
}

}  // namespace

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
  int64_t chunks = 1;
  for (const Slice& slice : slices) chunks = std::max(chunks, ChunksOf(slice, dtype, members));
  for (const Slice& slice : slices) {
    const size_t begin = static_cast<size_t>(slice.begin) * SizeOf(dtype);
    const size_t bytes = static_cast<size_t>(slice.count) * SizeOf(dtype);
    const int rank = slice.place < members ? args.members[static_cast<size_t>(slice.place)]
                                           : args.first_server + slice.place - members;
    Part part{rank, Bytes(data + begin, bytes), {}};
    part.header = {args.tag, slice.count, (slice.count + chunks - 1) / chunks,
                   dtype,    args.op,     args.mode,
                   args.key};
    part.encoded = Encode(part.header);
    if (slice.place == args.my_index) {
      mine_ = part;
    } else {
      parts_.push_back(part);
    }
  }
  const auto first = static_cast<size_t>(args.my_index) % std::max<size_t>(parts_.size(), 1);
  std::rotate(parts_.begin(), parts_.begin() + static_cast<ptrdiff_t>(first), parts_.end());
}

Status PushPull::Run() {
  if (mine_.has_value()) {
    const size_t each = mine_->Chunk(0).size() * static_cast<size_t>(kPsChunksInFlight);
    RABIT_ASSIGN_OR_RETURN(pushed_, args_.scratch.Get(each * args_.members.size()));
  }
  if (args_.my_index == 0) Announce();
  int64_t longest = mine_.has_value() ? mine_->chunks() : 0;
  for (const Part& part : parts_) longest = std::max(longest, part.chunks());
  for (int64_t k = 0; k < longest + kFinishLag; ++k) {
    Expect(k);
    PushAndPull(k);
    if (k >= kFinishLag) RABIT_RETURN_IF_ERROR(Finish(k - kFinishLag));
  }
  return FinishAll();
}

void PushPull::Announce() {
  const Tag tag = PushHeaderTag(StreamOf(args_.tag), args_.group);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!IsServer(parts_[i])) continue;
    headers_.Start(i, args_.endpoints.Send(parts_[i].rank, tag, parts_[i].encoded));
  }
}

void PushPull::PushAndPull(int64_t k) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (k >= part.chunks()) continue;
    // The sum lands where the chunk is sent from: there is none before all of the chunk has come.
    const size_t slot = SlotOf(k, i, parts_.size());
    pulls_.Start(slot, args_.endpoints.Recv(part.rank, args_.tag + 1, part.Chunk(k)));
    pushes_.Start(slot, args_.endpoints.Send(part.rank, args_.tag, part.Chunk(k)));
  }
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
    RABIT_RETURN_IF_ERROR(leaving_.Wait(slot, args_.deadline));
    const bool is_mine = static_cast<int>(i) == args_.my_index;
    inputs_[i] = is_mine ? sum.data() : Pushed(k, i, sum.size()).data();
  }
  const DType dtype = mine_->header.dtype;
  Reduce(args_.op, dtype, inputs_, sum.data(), static_cast<int64_t>(sum.size() / SizeOf(dtype)));
  for (size_t turn = 1; turn < members; ++turn) {
    const size_t i = (static_cast<size_t>(args_.my_index) + turn) % members;
    leaving_.Start(SlotOf(k, i, members),
                   args_.endpoints.Send(args_.members[i], args_.tag + 1, sum));
  }
  return Status();
}

Status PushPull::Failed(int rank, const Status& status) const {
  return rank >= args_.first_server ? blame_(rank - args_.first_server, status) : status;
}

Status PushPull::Wait(OperationSlots& slots, int64_t k) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (k >= parts_[i].chunks()) continue;
    const Status over = slots.Wait(SlotOf(k, i, parts_.size()), args_.deadline);
    if (!over.ok()) return Failed(parts_[i].rank, over);
  }
  return Status();
}

// Pushes first: a server that is lost is found by them, while the sum of another one, which waits
// for workers that have found it before, may never come.
Status PushPull::Finish(int64_t k) {
  RABIT_RETURN_IF_ERROR(Wait(pushes_, k));
  RABIT_RETURN_IF_ERROR(Sum(k));
  return Wait(pulls_, k);
}

Status PushPull::FinishAll() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Status told = headers_.Wait(i, args_.deadline);
    if (!told.ok()) return Failed(parts_[i].rank, told);
  }
  return leaving_.WaitAll(args_.deadline);
}

}  // namespace rabit
