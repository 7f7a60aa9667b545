// Reduce-scatters, and allgathers of even parts.  A bucket's buffer has the parts in the order of
// the ranks, and in each part the slices of all tensors, so that one exchange serves them all.
#include <cstring>
#include <numeric>
#include <vector>

#include "arithmetic/reduce.h"
#include "engine/averaging.h"
#include "engine/bucket_run.h"
#include "engine/overlap.h"
#include "engine/part_slices.h"

namespace rabit {
namespace {

// Everything of one tensor: it lies in the caller's memory as the exchange wants it.
bool IsWhole(const Segment& segment) {
  const BucketItem& first = segment.items.front();
  return segment.is_contiguous && first.partition.offset == 0 &&
         segment.count == ElementsOf(first).Of(0);
}

int64_t TotalOf(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// The output of a reduce-scatter may be this rank's own part of the input: that, nobody else reads.
Status KeepInput(const BucketItem& item, size_t own_offset) {
  PendingRequest& pending = *item.request();
  const auto* const input = static_cast<const std::byte*>(pending.request.input.data);
  const TensorView& output = pending.output().view;
  const ConstBytes written(static_cast<const std::byte*>(output.data), output.bytes());
  if (written.data() == input + own_offset) return Status();
  if (!Overlap({input, pending.request.input.bytes()}, written)) return Status();
  return pending.CopyInput();
}

// Calls copy(item, elements) for each slice of a part that is not empty, in order: who brings
// nothing may have no memory.
template <class Copy>
Status ForEachSlice(const Segment& segment, int64_t part, Copy copy) {
  for (const BucketItem& item : segment.items) {
    const EvenElements elements = ElementsOf(item);
    const int64_t count = SliceCount(item.partition, elements.Of(part));
    if (count > 0) RABIT_RETURN_IF_ERROR(copy(item, count));
  }
  return Status();
}

}  // namespace

Status BucketRun::RunParts() {
  is_in_place_ = true;
  const auto bytes = bucket_.even_parts * static_cast<int64_t>(SizeOf(bucket_.dtype));
  for (const Segment& segment : SegmentsOf(job_.items, bytes, segment_limits())) {
    RABIT_RETURN_IF_ERROR(Settle());  // segments share the buffer
    const std::vector<int64_t> counts = PartCounts(segment.items);
    is_in_place_ = is_in_place_ && IsDirect(segment);
    RABIT_RETURN_IF_ERROR(bucket_.kind == Kind::kAllgather ? GatherParts(segment, counts)
                                                           : ScatterParts(segment, counts));
  }
  return Status();
}

// Images of several partitions do not join to that of their tensor.
bool BucketRun::IsDirect(const Segment& segment) const {
  if (!IsWhole(segment) || (is_staged_ && segment.items.size() > 1)) return false;
  const BucketItem& first = segment.items.front();
  return first.request() == nullptr || CanReachOutput(first);
}

Status BucketRun::GatherParts(const Segment& segment, std::span<const int64_t> counts) {
  for (const BucketItem& item : segment.items) {
    // A rank that has joined would bring no rows, and the parts would not be even.
    if (item.request() == nullptr) return Internal("an even allgather lacks a part; report this");
    RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(item.tensor->ready->signature.shape));
  }
  const size_t element_bytes = SizeOf(bucket_.dtype);
  const auto me = static_cast<size_t>(group_.my_index);
  const size_t bytes = static_cast<size_t>(TotalOf(counts)) * element_bytes;
  const size_t my_bytes = static_cast<size_t>(counts[me]) * element_bytes;
  if (bytes == 0) return Status();
  if (IsDirect(segment)) {
    const BucketItem& item = segment.items.front();
    return ExchangeGather({InputOf(item), my_bytes}, {OutputSlice(item, 0), bytes}, counts);
  }
  RABIT_ASSIGN_OR_RETURN(const Bytes all, Packed(bytes));
  const Bytes mine =
      all.subspan(static_cast<size_t>(TotalOf(counts.first(me))) * element_bytes, my_bytes);

  const int64_t pack_ns = NowNs();
  std::byte* to = mine.data();
  RABIT_RETURN_IF_ERROR(
      ForEachSlice(segment, group_.my_index, [&](const BucketItem& item, int64_t count) {
        std::byte* const at = to;
        to += static_cast<size_t>(count) * element_bytes;
        return Carry(at, InputOf(item), static_cast<size_t>(count) * element_bytes);
      }));
  Trace("MEMCPY_IN_FUSION_BUFFER", pack_ns, NowNs());

  RABIT_RETURN_IF_ERROR(ExchangeGather(mine, all, counts));
  return Then([this, segment, all] { return UnpackGathered(segment, all); });
}

Status BucketRun::UnpackGathered(const Segment& segment, ConstBytes all) {
  const int64_t unpack_ns = NowNs();
  const std::byte* from = all.data();
  for (int part = 0; part < group_.size(); ++part) {
    RABIT_RETURN_IF_ERROR(ForEachSlice(segment, part, [&](const BucketItem& item, int64_t count) {
      const size_t bytes = static_cast<size_t>(count) * SizeOf(bucket_.dtype);
      const std::byte* const at = from;
      from += bytes;
      return HandOver(item, OutputSlice(item, part), at, bytes);
    }));
  }
  Trace("MEMCPY_OUT_FUSION_BUFFER", unpack_ns, NowNs());
  return Status();
}

Status BucketRun::ExchangeGather(ConstBytes mine, Bytes all, std::span<const int64_t> counts) {
  std::vector<int64_t> part_bytes(counts.begin(), counts.end());
  for (int64_t& bytes : part_bytes) bytes *= static_cast<int64_t>(SizeOf(bucket_.dtype));
  const Load load{static_cast<int64_t>(all.size()), counts.back() == 0};
  return Communicate(bucket_, load, load.bytes, [&](Backend& backend) {
    return backend.Allgather(lane_, mine, all, part_bytes);
  });
}

Status BucketRun::ScatterParts(const Segment& segment, std::span<const int64_t> counts) {
  const size_t element_bytes = SizeOf(bucket_.dtype);
  const int64_t total = TotalOf(counts);
  const int64_t mine = counts[static_cast<size_t>(group_.my_index)];
  const int64_t before_me = TotalOf(counts.first(static_cast<size_t>(group_.my_index)));
  for (const BucketItem& item : segment.items) {
    if (item.request() != nullptr) RABIT_RETURN_IF_ERROR(PrepareScatter(item));
  }
  if (total == 0) return Status();
  const BucketItem& first = segment.items.front();
  const bool is_direct = IsDirect(segment) && first.request() != nullptr && !WritesToInput(first);
  TensorView in{nullptr, total, bucket_.dtype, {}};
  TensorView out{nullptr, mine, bucket_.dtype, {}};
  if (is_direct && (bucket_.prescale == 1.0 || is_on_device_)) {
    in.data = const_cast<std::byte*>(InputSlice(first, 0));  // which backends only read
  } else {
    RABIT_ASSIGN_OR_RETURN(const Bytes buffer, Packed(in.bytes()));
    RABIT_RETURN_IF_ERROR(PackParts(segment, buffer));
    in.data = buffer.data();
  }
  out.data =
      is_direct ? OwnSlice(first)
                : static_cast<std::byte*>(in.data) + static_cast<size_t>(before_me) * element_bytes;
  const Load load{static_cast<int64_t>(in.bytes())};
  Epilogue left = epilogue();
  RABIT_RETURN_IF_ERROR(Communicate(bucket_, load, load.bytes, [&](Backend& backend) {
    return backend.ReduceScatter(Finishing(backend, lane_, left), in, out, counts, wire_op());
  }));
  return Then([this, segment, out, is_direct, left] {
    ApplyEpilogue(left, bucket_.dtype, static_cast<std::byte*>(out.data), out.count);
    return is_direct ? Status() : UnpackScattered(segment, static_cast<const std::byte*>(out.data));
  });
}

Status BucketRun::UnpackScattered(const Segment& segment, const std::byte* from) {
  const int64_t unpack_ns = NowNs();
  RABIT_RETURN_IF_ERROR(
      ForEachSlice(segment, group_.my_index, [&](const BucketItem& item, int64_t count) {
        const size_t bytes = static_cast<size_t>(count) * SizeOf(bucket_.dtype);
        const std::byte* const at = from;
        from += bytes;
        return item.request() == nullptr ? Status() : HandOver(item, OwnSlice(item), at, bytes);
      }));
  Trace("MEMCPY_OUT_FUSION_BUFFER", unpack_ns, NowNs());
  return Status();
}

// Images have the slices of their partition one behind the other; tensors have whole parts.
size_t BucketRun::SliceOffset(const BucketItem& item, int64_t part, bool is_image) const {
  const EvenElements elements = ElementsOf(item);
  int64_t offset = elements.Begin(part) + item.partition.offset;
  if (is_image) {
    offset = 0;
    for (int64_t before = 0; before < part; ++before) {
      offset += SliceCount(item.partition, elements.Of(before));
    }
  }
  return static_cast<size_t>(offset) * SizeOf(bucket_.dtype);
}

const std::byte* BucketRun::InputSlice(const BucketItem& item, int64_t part) const {
  const std::byte* const begin = is_staged_ ? staged_.InputOf(item, job_) : item.request()->input();
  return begin + SliceOffset(item, part, is_staged_);
}

std::byte* BucketRun::OutputSlice(const BucketItem& item, int64_t part) const {
  const TensorView& view = item.request()->output().view;
  const bool is_image = is_staged_ && view.device.kind != DeviceKind::kCpu;
  std::byte* const begin =
      is_image ? staged_.OutputOf(item, job_) : static_cast<std::byte*>(view.data);
  return begin + SliceOffset(item, part, is_image);
}

std::byte* BucketRun::OwnSlice(const BucketItem& item) const {
  const TensorView& view = item.request()->output().view;
  const bool is_image = is_staged_ && view.device.kind != DeviceKind::kCpu;
  if (is_image) return staged_.OutputOf(item, job_);
  return static_cast<std::byte*>(view.data) +
         static_cast<size_t>(item.partition.offset) * SizeOf(bucket_.dtype);
}

Status BucketRun::PrepareScatter(const BucketItem& item) {
  const EvenElements elements = ElementsOf(item);
  std::vector<int64_t> shape = item.tensor->ready->signature.shape;
  shape[0] = elements.rows.Of(group_.my_index);
  RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(std::move(shape)));
  if (is_staged_ || is_on_device_) return Status();  // images lie apart; see WritesToInput
  const auto own_offset =
      static_cast<size_t>(elements.Begin(group_.my_index)) * SizeOf(bucket_.dtype);
  return KeepInput(item, own_offset);
}

// On a device: the output is a part of the input that is not this rank's own, and others are read
// while it is written.  Then the input is packed before.
bool BucketRun::WritesToInput(const BucketItem& item) const {
  if (!is_on_device_) return false;
  const TensorView& input = item.request()->request.input;
  const TensorView& output = item.request()->output().view;
  const auto* const begin = static_cast<const std::byte*>(input.data);
  const auto* const written = static_cast<const std::byte*>(output.data);
  if (written == begin + SliceOffset(item, group_.my_index, false)) return false;
  return Overlap({begin, input.bytes()}, {written, output.bytes()});
}

Status BucketRun::PackParts(const Segment& segment, Bytes buffer) {
  const int64_t pack_ns = NowNs();
  std::byte* to = buffer.data();
  for (int part = 0; part < group_.size(); ++part) {
    RABIT_RETURN_IF_ERROR(ForEachSlice(segment, part, [&](const BucketItem& item, int64_t count) {
      std::byte* const at = to;
      to += static_cast<size_t>(count) * SizeOf(bucket_.dtype);
      return Bring(item, item.request() == nullptr ? nullptr : InputSlice(item, part), at, count);
    }));
  }
  Trace("MEMCPY_IN_FUSION_BUFFER", pack_ns, NowNs());
  return Status();
}

}  // namespace rabit
