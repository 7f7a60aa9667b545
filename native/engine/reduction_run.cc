// Allreduces and reduces: one tensor alone in its output, several packed into scratch.
#include "arithmetic/reduce.h"
#include "engine/averaging.h"
#include "engine/bucket_work.h"
#include "engine/fusion_buffer.h"

namespace rabit {
namespace {

bool HasResult(const BucketWork& work) {
  return work.bucket().kind == Kind::kAllreduce || work.is_root();
}

// The output is the buffer: no copy but the one from input to output, and none if they are one.
Status RunInPlace(BucketWork& work, const Segment& segment) {
  const BucketItem& item = segment.items.front();
  const int64_t count = segment.count;
  RABIT_ASSIGN_OR_RETURN(std::byte* const output, OutputLikeInput(work, item));
  RABIT_RETURN_IF_ERROR(
      work.memory.Bring(item, work.memory.Input(item), output, count, work.exchange.input_scale()));
  const DType dtype = work.bucket().dtype;
  // The segment may be several partitions of the tensor; they lie side by side, so that the first
  // one stands for all.
  Epilogue left = work.exchange.epilogue();
  RABIT_RETURN_IF_ERROR(ExchangeReduction(work, TensorView{output, count, dtype, {}}, left));
  return work.exchange.Then([output, count, dtype, left] {
    ApplyEpilogue(left, dtype, output, count);
    return Status();
  });
}

Status Pack(BucketWork& work, const Segment& segment, std::byte* to) {
  const int64_t pack_ns = NowNs();
  for (const BucketItem& item : segment.items) {
    const int64_t count = item.partition.count;
    const std::byte* const from = item.request() == nullptr ? nullptr : work.memory.Input(item);
    RABIT_RETURN_IF_ERROR(work.memory.Bring(item, from, to, count, work.exchange.input_scale()));
    to += static_cast<size_t>(count) * work.element_bytes();
  }
  work.exchange.Trace("MEMCPY_IN_FUSION_BUFFER", pack_ns);
  return Status();
}

Status Unpack(BucketWork& work, const Segment& segment, ConstBytes from) {
  for (const BucketItem& item : segment.items) {
    const size_t bytes = static_cast<size_t>(item.partition.count) * work.element_bytes();
    if (item.request() != nullptr) {
      RABIT_ASSIGN_OR_RETURN(std::byte* const output, OutputLikeInput(work, item));
      RABIT_RETURN_IF_ERROR(work.memory.HandOver(item, output, from.first(bytes)));
    }
    from = from.subspan(bytes);
  }
  return Status();
}

Status RunFused(BucketWork& work, const Segment& segment) {
  const DType dtype = work.bucket().dtype;
  const size_t bytes = static_cast<size_t>(segment.count) * work.element_bytes();
  RABIT_ASSIGN_OR_RETURN(const Bytes buffer, work.memory.Scratch(FusionBuffer::kPacked, bytes));
  RABIT_RETURN_IF_ERROR(Pack(work, segment, buffer.data()));
  Epilogue left = work.exchange.epilogue();
  RABIT_RETURN_IF_ERROR(
      ExchangeReduction(work, TensorView{buffer.data(), segment.count, dtype, {}}, left));
  // Backends use the buffer of other ranks than the root as scratch: it holds no sum.
  if (!HasResult(work)) return Status();
  // By value: the segment is gone when a pending exchange is settled.
  return work.exchange.Then([&work, segment, buffer, dtype, left] {
    const int64_t unpack_ns = NowNs();
    ApplyEpilogue(left, dtype, buffer.data(), segment.count);
    RABIT_RETURN_IF_ERROR(Unpack(work, segment, buffer));
    work.exchange.Trace("MEMCPY_OUT_FUSION_BUFFER", unpack_ns);
    return Status();
  });
}

}  // namespace

Status RunReduction(BucketWork& work) {
  work.is_in_place = true;
  const auto element_bytes = static_cast<int64_t>(work.element_bytes());
  for (const Segment& segment : SegmentsOf(work.job.items, element_bytes, work.exchange.limits())) {
    // Segments share the scratch: one that is still exchanged would be overwritten.
    RABIT_RETURN_IF_ERROR(work.exchange.Settle());
    const BucketItem& first = segment.items.front();
    // Elsewhere than at the root the exchange overwrites its buffer, which must not be the tensor.
    const bool is_one = HasResult(work) && segment.is_contiguous && first.request() != nullptr;
    const bool is_in_place = is_one && work.memory.CanReachOutput(first);
    work.is_in_place = work.is_in_place && is_in_place;
    RABIT_RETURN_IF_ERROR(is_in_place ? RunInPlace(work, segment) : RunFused(work, segment));
  }
  return Status();
}

Status ExchangeReduction(BucketWork& work, const TensorView& buffer, Epilogue& left) {
  if (buffer.count == 0) return Status();  // on every rank alike
  const Bucket& bucket = work.bucket();
  BucketExchange& exchange = work.exchange;
  const auto bytes = static_cast<int64_t>(buffer.bytes());
  Work converted;
  const Work* as = &bucket;
  if (buffer.dtype != bucket.dtype) {  // by a codec
    converted = bucket;
    converted.dtype = buffer.dtype;
    as = &converted;
  }
  return exchange.Communicate(*as, {bytes}, bytes, [&](Backend& backend) {
    const LaneContext lane = Finishing(backend, exchange.lane(), left);
    if (bucket.kind == Kind::kAllreduce) return backend.Allreduce(lane, buffer, exchange.wire_op());
    return backend.Reduce(lane, buffer, exchange.wire_op(), work.group().IndexOf(bucket.root));
  });
}

Result<std::byte*> OutputLikeInput(BucketWork& work, const BucketItem& item) {
  RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(item.tensor->ready->signature.shape));
  return work.memory.Output(item);
}

}  // namespace rabit
