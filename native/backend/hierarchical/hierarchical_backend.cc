#include "backend/hierarchical/hierarchical_backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/on_stream.h"
#include "base/check.h"
#include "base/tree_plan.h"
#include "collective/allreduce.h"
#include "collective/chunks.h"
#include "collective/hosts.h"
#include "collective/neighbourhood.h"
#include "collective/planned.h"

namespace rabit {
namespace {

constexpr int64_t kPiecesMax = 8;

// Elements of a piece: all but the last are divided evenly, which is what NCCL does best.
int64_t PieceCountFor(const TensorView& buffer, int64_t piece_bytes, int shares) {
  const auto bytes = static_cast<int64_t>(buffer.bytes());
  const int64_t pieces = std::clamp<int64_t>(bytes / piece_bytes, 1, kPiecesMax);
  const int64_t count = (buffer.count + pieces - 1) / pieces;
  return (count + shares - 1) / shares * shares;
}

// `positions` as ranks of the job.
Group RanksAt(const Group& group, const Group& positions) {
  Group ranks{group.id, {}, positions.my_index};
  for (const int position : positions.ranks) {
    ranks.ranks.push_back(group.ranks[static_cast<size_t>(position)]);
  }
  return ranks;
}

// The ranks with this one's part on every host, with what the plan of the group says of the hosts.
Group Across(const Group& group, std::span<const int> host_of, const Neighbourhood& found) {
  Group across = RanksAt(group, found.across);
  if (group.plan == nullptr || !across.is_member()) return across;
  std::map<int, int> place_of;
  for (const int position : found.across.ranks) {
    const auto place = static_cast<int>(place_of.size());
    place_of[host_of[static_cast<size_t>(position)]] = place;
  }
  std::vector<int> places;
  for (const int host : host_of) places.push_back(place_of[host]);
  across.plan = group.plan->Between(places, across.size());
  return across;
}

}  // namespace

// One allreduce on its way.
class HierarchicalBackend::Exchange {
 public:
  Exchange(HierarchicalBackend& backend, const LaneContext& lane, std::span<const int> host_of,
           const Neighbourhood& found, const TensorView& in_out, ReduceOp op)
      : backend_(backend),
        lane_(lane),
        found_(found),
        local_(RanksAt(lane.group, found.local)),
        across_(Across(lane.group, host_of, found)),
        elements_(in_out),
        whole_{0, in_out.count},
        piece_count_(PieceCountFor(in_out, backend.parts_.piece_bytes, found.shares)),
        pieces_(ChunksIn(whole_, piece_count_)),
        op_(op == ReduceOp::kAverage ? ReduceOp::kSum : op),
        place_(*lane.place),
        images_(backend.ImagesOf(place_)) {
    // The ranks inside a host are not all that an average counts.
    if (op == ReduceOp::kAverage) place_.factor /= lane.group.size();
  }

  Status Run() {
    RABIT_RETURN_IF_ERROR(Reserve());
    Status status = RunPieces();
    // Also behind copies before something failed: their memory is in use.
    const Status left = images_.last.Record(place_.driver, place_.device, place_.stream);
    return status.ok() ? left : status;
  }

 private:
  struct Piece {
    Range whole;
    std::vector<Range> parts;  // by rank of the host
    Range mine;
    std::byte* image = nullptr;  // of what is mine, if anything is, in the memory of the host
    void* arrival;
  };

  Piece PieceAt(int64_t k) const {
    Piece piece;
    piece.whole = ChunkOf(whole_, piece_count_, k);
    piece.parts = found_.PartsOf(piece.whole);
    piece.mine = piece.parts[static_cast<size_t>(local_.my_index)];
    const int64_t before = k * piece_count_ / found_.shares;  // pieces before this one are even
    if (!piece.mine.empty()) {
      piece.image = images_.blocks.back().data() + (is_ahead_ ? elements_.BytesIn(before) : 0);
    }
    piece.arrival = images_.arrivals[static_cast<size_t>(k)].get();
    return piece;
  }

  Status Reserve() {
    const auto pieces = static_cast<size_t>(pieces_);
    const bool owns_parts = across_.is_member();
    const auto largest =
        static_cast<size_t>(owns_parts ? elements_.BytesIn(piece_count_ / found_.shares) : 0);
    RABIT_RETURN_IF_ERROR(images_.Reserve(place_, largest * pieces, largest, pieces));
    is_ahead_ = !owns_parts || images_.blocks.back().bytes() >= largest * pieces;
    return Status();
  }

  // All pieces are told to the device before the first is waited for.
  Status RunPieces() {
    for (int64_t k = 0; k < pieces_; ++k) RABIT_RETURN_IF_ERROR(ReduceInside(PieceAt(k)));
    for (int64_t k = 0; k < pieces_; ++k) {
      const Piece piece = PieceAt(k);
      if (!piece.mine.empty()) RABIT_RETURN_IF_ERROR(ReduceBetween(piece));
      RABIT_RETURN_IF_ERROR(GatherInside(piece));
    }
    return Status();
  }

  Status ReduceInside(const Piece& piece) {
    std::vector<int64_t> counts;
    for (const Range& part : piece.parts) counts.push_back(part.count());
    const LaneContext context = Within(local_, &place_);
    RABIT_RETURN_IF_ERROR(
        backend_.parts_.inside
            .ReduceScatter(context, View(piece.whole), View(piece.mine), counts, op_)
            .Wait(lane_.deadline));
    return piece.mine.empty() || !is_ahead_ ? Status() : CopyToImage(piece);
  }

  Status CopyToImage(const Piece& piece) {
    DeviceDriver& driver = *place_.driver;
    const Bytes mine = elements_.In(piece.mine);
    RABIT_RETURN_IF_ERROR(
        driver.CopyToHost(place_.device, place_.stream, piece.image, mine.data(), mine.size()));
    return driver.Record(place_.device, piece.arrival, place_.stream);
  }

  Status ReduceBetween(const Piece& piece) {
    // On the stream it comes behind the copy that emptied the image, of the piece before.
    if (!is_ahead_) RABIT_RETURN_IF_ERROR(CopyToImage(piece));
    RABIT_RETURN_IF_ERROR(
        WaitOnStream(backend_.parts_.inside, local_, place_, piece.arrival, lane_.deadline));
    const TensorView image{piece.image, piece.mine.count(), elements_.dtype(), {}};
    LaneContext context = Within(across_, nullptr);
    const auto bytes = static_cast<int64_t>(image.bytes());
    context.algorithm = AlgorithmBetween(bytes);
    RABIT_RETURN_IF_ERROR(
        backend_.parts_.between.Allreduce(context, image, op_).Wait(lane_.deadline));
    backend_.pieces_ += 1;
    backend_.bytes_between_ += bytes;
    return place_.driver->CopyToDevice(place_.device, place_.stream, elements_.At(piece.mine.begin),
                                       piece.image, image.bytes());
  }

  Status GatherInside(const Piece& piece) {
    std::vector<int64_t> bytes;
    for (const Range& part : piece.parts) bytes.push_back(elements_.BytesIn(part.count()));
    return backend_.parts_.inside
        .Allgather(Within(local_, &place_), elements_.In(piece.mine), elements_.In(piece.whole),
                   bytes)
        .Wait(lane_.deadline);
  }

  std::string_view AlgorithmBetween(int64_t bytes) const {
    if (lane_.algorithm == kPlanAlgorithm) return kPlanAlgorithm;
    const bool is_rank_ordered = WantsRankOrder(elements_.dtype(), op_);
    if (!is_rank_ordered && WantsRing(across_.size(), bytes)) return "ring";
    return ChooseAllreduceAlgorithm(backend_.parts_.link, across_.size(), bytes, is_rank_ordered)
        .name;
  }

  LaneContext Within(const Group& group, const DevicePlace* place) const {
    return {lane_.lane, lane_.tag, lane_.deadline, group, lane_.waiter, {}, place};
  }
  TensorView View(Range range) const {
    return {elements_.At(range.begin), range.count(), elements_.dtype(), {}};
  }

  HierarchicalBackend& backend_;
  const LaneContext& lane_;
  const Neighbourhood& found_;
  const Group local_;
  const Group across_;  // without this rank if it owns no parts
  const Elements elements_;
  const Range whole_;
  const int64_t piece_count_;
  const int64_t pieces_;
  const ReduceOp op_;
  DevicePlace place_;
  Images& images_;
  // All pieces have images, so that all are copied before the first is exchanged; else there is one
  // image, and a piece is copied when the one before has left it.
  bool is_ahead_ = true;
};

HierarchicalBackend::HierarchicalBackend(std::string name, HierarchyParts parts)
    : name_(std::move(name)), parts_(std::move(parts)) {}

Operation HierarchicalBackend::Allreduce(const LaneContext& lane, const TensorView& in_out,
                                         ReduceOp op) {
  RABIT_CHECK(lane.place != nullptr, "a hierarchy of devices is given memory of the host");
  RABIT_RETURN_IF_ERROR(failure());
  if (in_out.count == 0) return Status();
  const std::vector<int> host_of = HostsOf(parts_.topology, lane.group);
  const Neighbourhood found = FindNeighbourhood(host_of, lane.group.my_index);
  if (found.local.size() == lane.group.size()) return parts_.inside.Allreduce(lane, in_out, op);
  const Status status = Exchange(*this, lane, host_of, found, in_out, op).Run();
  if (status.ok()) return status;
  const Status why = failure();  // what has made a call fail, if that is known
  return why.ok() ? status : why;
}

HierarchicalBackend::Images& HierarchicalBackend::ImagesOf(const DevicePlace& place) {
  MutexLock lock(mutex_);
  return images_[place.device];
}

Status HierarchicalBackend::Images::Reserve(const DevicePlace& place, size_t bytes,
                                            size_t piece_bytes, size_t pieces) {
  while (arrivals.size() < pieces) {
    RABIT_ASSIGN_OR_RETURN(DeviceEvent event, MakeEvent(place.driver, place.device));
    arrivals.push_back(std::move(event));
  }
  if (bytes == 0) return Status();
  // Whether a block may go back depends on this rank alone, and so does what is copied ahead; what
  // is launched does not, or the ranks of a communicator would launch differently.
  if (last.Wait(std::chrono::steady_clock::now()).ok()) blocks.clear();
  if (!blocks.empty() && blocks.back().bytes() >= bytes) return Status();
  RABIT_ASSIGN_OR_RETURN(PinnedBlock block, place.pinned->Take(place.driver, place.device, bytes));
  // The next best is an image for one piece, which the last call may have left.
  if (!block && !blocks.empty() && blocks.back().bytes() >= piece_bytes) return Status();
  if (!block) {
    // The ranks of the other hosts wait for this piece, and nobody can wait for memory here: idle
    // blocks of other sizes are given back aside, and others are in use as long as ranks like.
    RABIT_ASSIGN_OR_RETURN(block,
                           place.pinned->TakeAnyway(place.driver, place.device, piece_bytes));
  }
  blocks.push_back(std::move(block));
  return Status();
}

Status HierarchicalBackend::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

Status HierarchicalBackend::Failure(const Group& group) {
  RABIT_RETURN_IF_ERROR(failure());
  return parts_.inside.Failure(group);
}

void HierarchicalBackend::Abort(Status why) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = why;
  }
  parts_.inside.Abort(why);
  parts_.between.Abort(std::move(why));
}

void HierarchicalBackend::WriteStatistics(JsonWriter& json) const {
  json.Member("pieces", pieces_.load());
  json.Member("bytes_between", bytes_between_.load());
}

}  // namespace rabit
