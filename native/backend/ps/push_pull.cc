#include "backend/ps/push_pull.h"

#include <algorithm>

namespace rabit {
namespace {

constexpr int64_t kFinishLag = kPsChunksInFlight - 1;

// Many chunks, so that pushing, summing and pulling overlap, but not so small that the cost per
// message shows.
int64_t ChunkCountFor(int64_t bytes, DType dtype, int members) {
  const int64_t chunk_bytes = std::clamp(bytes / 8, kPsChunkBytesMin, PsChunkBytesMax(members));
  return chunk_bytes / static_cast<int64_t>(SizeOf(dtype));
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
      headers_(slices.size()),
      pushes_(slices.size() * static_cast<size_t>(kPsChunksInFlight)),
      pulls_(slices.size() * static_cast<size_t>(kPsChunksInFlight)) {
  const DType dtype = args.in_out.dtype;
  auto* const data = static_cast<std::byte*>(args.in_out.data);
  for (const Slice& slice : slices) {
    const size_t begin = static_cast<size_t>(slice.begin) * SizeOf(dtype);
    const size_t bytes = static_cast<size_t>(slice.count) * SizeOf(dtype);
    Part part{slice.server, Bytes(data + begin, bytes), {}};
    part.header = {args.tag, slice.count,
                   ChunkCountFor(static_cast<int64_t>(bytes), dtype, args.members), dtype, args.op};
    part.encoded = Encode(part.header);
    parts_.push_back(part);
  }
  const auto first = static_cast<size_t>(args.my_index) % std::max<size_t>(parts_.size(), 1);
  std::rotate(parts_.begin(), parts_.begin() + static_cast<ptrdiff_t>(first), parts_.end());
}

Status PushPull::Run() {
  if (args_.my_index == 0) Announce();
  int64_t longest = 0;
  for (const Part& part : parts_) longest = std::max(longest, part.chunks());
  for (int64_t k = 0; k < longest + kFinishLag; ++k) {
    PushAndPull(k);
    if (k >= kFinishLag) RABIT_RETURN_IF_ERROR(Finish(k - kFinishLag));
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    Status told = headers_.Wait(i, args_.deadline);
    if (!told.ok()) return blame_(parts_[i].server, told);
  }
  return Status();
}

void PushPull::Announce() {
  const Tag tag = PushHeaderTag(StreamOf(args_.tag), args_.group);
  for (size_t i = 0; i < parts_.size(); ++i) {
    headers_.Start(i, args_.endpoints.Send(RankOf(parts_[i]), tag, parts_[i].encoded));
  }
}

void PushPull::PushAndPull(int64_t k) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (k >= part.chunks()) continue;
    // The sum lands where the chunk is sent from: there is none before its server has got the
    // chunk.
    pulls_.Start(SlotOf(k, i), args_.endpoints.Recv(RankOf(part), args_.tag + 1, part.Chunk(k)));
    pushes_.Start(SlotOf(k, i), args_.endpoints.Send(RankOf(part), args_.tag, part.Chunk(k)));
  }
}

// Pushes first: a server that is lost is found by them, while the sum of another one, which waits
// for workers that have found it before, may never come.
Status PushPull::Finish(int64_t k) {
  for (OperationSlots* each : {&pushes_, &pulls_}) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (k >= parts_[i].chunks()) continue;
      Status over = each->Wait(SlotOf(k, i), args_.deadline);
      if (!over.ok()) return blame_(parts_[i].server, over);
    }
  }
  return Status();
}

}  // namespace rabit
