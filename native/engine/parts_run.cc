// Reduce-scatters, and allgathers of even parts.  A bucket's buffer has the parts in the order of
// the ranks, and in each part the slices of all tensors, so that one exchange serves them all.
#include <numeric>
#include <vector>

#include "arithmetic/reduce.h"
#include "engine/averaging.h"
#include "engine/bucket_work.h"
#include "engine/fusion_buffer.h"
#include "engine/part_slices.h"

namespace rabit {
namespace {

// Everything of one tensor: it lies in the caller's memory as the exchange wants it.
bool IsWhole(const Segment& segment) {
  const BucketItem& first = segment.items.front();
  return segment.is_contiguous && first.partition.offset == 0 &&
         segment.count == ElementsOf(first).Of(0);
}

// Its memory is as the exchange wants it.
bool IsDirect(const BucketWork& work, const Segment& segment) {
  if (!IsWhole(segment)) return false;
  if (segment.items.size() > 1 && !work.memory.joins_partitions()) return false;
  const BucketItem& first = segment.items.front();
  return first.request() == nullptr || work.memory.CanReachOutput(first);
}

int64_t TotalOf(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Calls copy(item, elements, at) for each slice of a part that is not empty, in order, with its
// place in a buffer of which `at` is the rest: who brings nothing may have no memory.
template <class Copy>
Status ForEachSlice(const BucketWork& work, const Segment& segment, int64_t part, std::byte*& at,
                    Copy copy) {
  for (const BucketItem& item : segment.items) {
    const int64_t count = SliceCount(item.partition, ElementsOf(item).Of(part));
    if (count == 0) continue;
    RABIT_RETURN_IF_ERROR(copy(item, count, at));
    at += static_cast<size_t>(count) * work.element_bytes();
  }
  return Status();
}

// Copies part `part` of what the items read to `to`, which moves on.
Status PackPart(BucketWork& work, const Segment& segment, int64_t part, int64_t slice,
                std::byte*& to, double scale) {
  return ForEachSlice(
      work, segment, part, to, [&](const BucketItem& item, int64_t count, std::byte* at) {
        const bool has_input = item.request() != nullptr;
        const std::byte* const from =
            has_input ? work.memory.Slice(item, Side::kInput, slice).data() : nullptr;
        return work.memory.Bring(item, from, at, count, scale);
      });
}

// Copies part `part` at `from`, which moves on, to slice `slice` of what the items write.
Status UnpackPart(BucketWork& work, const Segment& segment, int64_t part, int64_t slice,
                  std::byte*& from) {
  return ForEachSlice(
      work, segment, part, from, [&](const BucketItem& item, int64_t count, std::byte* at) {
        if (item.request() == nullptr) return Status();
        const size_t bytes = static_cast<size_t>(count) * work.element_bytes();
        return work.memory.HandOver(item, work.memory.Slice(item, Side::kOutput, slice).data(),
                                    {at, bytes});
      });
}

Status ExchangeGather(BucketWork& work, ConstBytes mine, Bytes all,
                      std::span<const int64_t> counts) {
  std::vector<int64_t> part_bytes(counts.begin(), counts.end());
  for (int64_t& bytes : part_bytes) bytes *= static_cast<int64_t>(work.element_bytes());
  const Load load{static_cast<int64_t>(all.size()), counts.back() == 0};
  return work.exchange.Communicate(work.bucket(), load, load.bytes, [&](Backend& backend) {
    return backend.Allgather(work.exchange.lane(), mine, all, part_bytes);
  });
}

Status GatherParts(BucketWork& work, const Segment& segment, std::span<const int64_t> counts) {
  for (const BucketItem& item : segment.items) {
    // A rank that has joined would bring no rows, and the parts would not be even.
    if (item.request() == nullptr) return Internal("an even allgather lacks a part; report this");
    RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(item.tensor->ready->signature.shape));
  }
  const int me = work.group().my_index;
  const size_t bytes = static_cast<size_t>(TotalOf(counts)) * work.element_bytes();
  const size_t my_bytes =
      static_cast<size_t>(counts[static_cast<size_t>(me)]) * work.element_bytes();
  if (bytes == 0) return Status();
  if (IsDirect(work, segment)) {
    const BucketItem& item = segment.items.front();
    return ExchangeGather(work, {work.memory.Input(item), my_bytes},
                          {work.memory.Output(item), bytes}, counts);
  }
  RABIT_ASSIGN_OR_RETURN(const Bytes all, work.memory.Scratch(FusionBuffer::kPacked, bytes));
  const auto before_me = static_cast<size_t>(TotalOf(counts.first(static_cast<size_t>(me))));
  const Bytes mine = all.subspan(before_me * work.element_bytes(), my_bytes);

  const int64_t pack_ns = NowNs();
  std::byte* to = mine.data();
  RABIT_RETURN_IF_ERROR(PackPart(work, segment, me, 0, to, 1.0));
  work.exchange.Trace("MEMCPY_IN_FUSION_BUFFER", pack_ns);

  RABIT_RETURN_IF_ERROR(ExchangeGather(work, mine, all, counts));
  return work.exchange.Then([&work, segment, all] {
    const int64_t unpack_ns = NowNs();
    std::byte* from = all.data();
    for (int part = 0; part < work.group().size(); ++part) {
      RABIT_RETURN_IF_ERROR(UnpackPart(work, segment, part, part, from));
    }
    work.exchange.Trace("MEMCPY_OUT_FUSION_BUFFER", unpack_ns);
    return Status();
  });
}

// Prepares what each rank gets of the items; whether it may be written while others' parts are
// read.
Result<bool> PrepareScatter(BucketWork& work, const Segment& segment) {
  bool keeps_inputs = true;
  for (const BucketItem& item : segment.items) {
    if (item.request() == nullptr) continue;
    std::vector<int64_t> shape = item.tensor->ready->signature.shape;
    shape[0] = ElementsOf(item).rows.Of(work.group().my_index);
    RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(std::move(shape)));
    RABIT_ASSIGN_OR_RETURN(const bool keeps_input, work.memory.KeepInput(item));
    keeps_inputs = keeps_inputs && keeps_input;
  }
  return keeps_inputs;
}

Status ScatterParts(BucketWork& work, const Segment& segment, std::span<const int64_t> counts) {
  BucketExchange& exchange = work.exchange;
  const DType dtype = work.bucket().dtype;
  const int me = work.group().my_index;
  const int64_t total = TotalOf(counts);
  const int64_t before_me = TotalOf(counts.first(static_cast<size_t>(me)));
  RABIT_ASSIGN_OR_RETURN(const bool keeps_inputs, PrepareScatter(work, segment));
  if (total == 0) return Status();
  const BucketItem& first = segment.items.front();
  const bool is_direct = IsDirect(work, segment) && first.request() != nullptr && keeps_inputs;
  TensorView in{nullptr, total, dtype, {}};
  TensorView out{nullptr, counts[static_cast<size_t>(me)], dtype, {}};
  if (is_direct && exchange.input_scale() == 1.0) {
    in.data = work.memory.Input(first);
  } else {
    RABIT_ASSIGN_OR_RETURN(const Bytes buffer,
                           work.memory.Scratch(FusionBuffer::kPacked, in.bytes()));
    in.data = buffer.data();
    const int64_t pack_ns = NowNs();
    std::byte* to = buffer.data();
    for (int part = 0; part < work.group().size(); ++part) {
      RABIT_RETURN_IF_ERROR(PackPart(work, segment, part, part, to, exchange.input_scale()));
    }
    exchange.Trace("MEMCPY_IN_FUSION_BUFFER", pack_ns);
  }
  std::byte* const mine = is_direct ? work.memory.Output(first)
                                    : static_cast<std::byte*>(in.data) +
                                          static_cast<size_t>(before_me) * work.element_bytes();
  out.data = mine;
  const Load load{static_cast<int64_t>(in.bytes())};
  Epilogue left = exchange.epilogue();
  RABIT_RETURN_IF_ERROR(
      exchange.Communicate(work.bucket(), load, load.bytes, [&](Backend& backend) {
        return backend.ReduceScatter(Finishing(backend, exchange.lane(), left), in, out, counts,
                                     exchange.wire_op());
      }));
  return exchange.Then([&work, segment, mine, count = out.count, me, is_direct, left] {
    ApplyEpilogue(left, work.bucket().dtype, mine, count);
    if (is_direct) return Status();
    const int64_t unpack_ns = NowNs();
    std::byte* from = mine;
    RABIT_RETURN_IF_ERROR(UnpackPart(work, segment, me, 0, from));
    work.exchange.Trace("MEMCPY_OUT_FUSION_BUFFER", unpack_ns);
    return Status();
  });
}

}  // namespace

Status RunParts(BucketWork& work) {
  work.is_in_place = true;
  const auto bytes = work.bucket().even_parts * static_cast<int64_t>(work.element_bytes());
  for (const Segment& segment : SegmentsOf(work.job.items, bytes, work.exchange.limits())) {
    // Segments share the scratch: one that is still exchanged would be overwritten.
    RABIT_RETURN_IF_ERROR(work.exchange.Settle());
    const std::vector<int64_t> counts = PartCounts(segment.items);
    work.is_in_place = work.is_in_place && IsDirect(work, segment);
    RABIT_RETURN_IF_ERROR(work.bucket().kind == Kind::kAllgather
                              ? GatherParts(work, segment, counts)
                              : ScatterParts(work, segment, counts));
  }
  return Status();
}

}  // namespace rabit
