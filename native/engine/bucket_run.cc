#include "engine/bucket_run.h"

#include <chrono>
#include <cstring>
#include <vector>

#include "arithmetic/reduce.h"
#include "engine/averaging.h"
#include "engine/content_hash.h"
#include "engine/handle_table.h"

namespace rabit {
namespace {

constexpr auto kNoTimeout = std::chrono::hours(24 * 365);

Deadline OperationDeadline(int64_t timeout_ms) {
  if (timeout_ms <= 0) return After(kNoTimeout);
  return After(std::chrono::milliseconds(timeout_ms));
}

const std::byte* InputOf(const BucketItem& item, DType dtype) {
  return static_cast<const std::byte*>(item.request()->request.input.data) +
         static_cast<size_t>(item.partition.offset) * SizeOf(dtype);
}

}  // namespace

std::string DescribeBucket(const BucketJob& job, int rank) {
  std::string text(Name(job.bucket.kind));
  if (!job.items.empty()) text += " '" + job.items.front().tensor->ready->name + "'";
  if (job.items.size() > 1) text += " and " + std::to_string(job.items.size() - 1) + " more";
  return text + " on rank " + std::to_string(rank);
}

BucketRun::BucketRun(const LaneServices& services, const BucketJob& job, FusionBuffer& buffer,
                     Waiter waiter)
    : services_(services),
      job_(job),
      bucket_(job.bucket),
      group_(*job.group),
      buffer_(buffer),
      lane_{bucket_.lane, Tag{0}, OperationDeadline(services.options.operation_timeout_ms), group_,
            waiter} {
  device_.kind = bucket_.device_kind;
  for (const BucketItem& item : job_.items) {
    count_ += item.partition.count;
    if (item.request() != nullptr) device_ = item.request()->request.device;
  }
}

Status BucketRun::Run() {
  const int64_t started_ns = NowNs();
  const CollectiveSpec spec{bucket_.kind, bucket_.dtype, device_, wire_op(), count_};
  RABIT_ASSIGN_OR_RETURN(backend_, services_.selector.Choose(spec, group_, bucket_.backend));
  algorithm_ = bucket_.kind == Kind::kAllreduce ? backend_->AlgorithmFor(spec, group_)
                                                : std::string(Name(bucket_.kind));
  if (services_.timeline.is_active()) {
    for (const BucketItem& item : job_.items) {
      services_.timeline.Span(std::string(Name(bucket_.kind)) + "." + item.tensor->ready->name,
                              "QUEUE", item.tensor->agreed_ns, started_ns);
    }
  }
  const bool is_reduction = bucket_.kind == Kind::kAllreduce || bucket_.kind == Kind::kReduce;
  Enter();
  Status status = is_reduction ? RunReduction() : RunEach();
  services_.running.Leave(bucket_.lane);
  Record(started_ns);
  return status;
}

void BucketRun::Enter() {
  const uint64_t hash = MixHash(MixHash(job_.hash, backend_->name()), algorithm_);
  lane_.tag = MakeTag(bucket_.lane, CheckedSequence(bucket_.id, hash));
  services_.running.Enter(bucket_.lane, {ScheduleDigest::kBuckets, bucket_.id, hash, {}},
                          [this] { return Describe(); });
}

std::string BucketRun::Describe() const {
  std::string text(Name(bucket_.kind));
  if (!job_.items.empty()) text += " '" + job_.items.front().tensor->ready->name + "'";
  if (job_.items.size() > 1) text += " and " + std::to_string(job_.items.size() - 1) + " more";
  return text + " (" + std::to_string(count_) + " elements of " + std::string(Name(bucket_.dtype)) +
         " by " + algorithm_ + ", " + std::string(backend_->name()) + ", lane " +
         std::to_string(bucket_.lane) + ")";
}

ReduceOp BucketRun::wire_op() const { return WireOp(bucket_.op); }

bool BucketRun::must_divide() const {
  return MustDivide(bucket_.op, bucket_.dtype, group_.size(), bucket_.postscale);
}

double BucketRun::post_factor() const {
  return PostFactor(bucket_.op, bucket_.dtype, group_.size(), bucket_.postscale);
}

void BucketRun::Finalize(std::byte* data, int64_t count) const {
  FinishReduction(bucket_.op, bucket_.dtype, data, count, group_.size(), bucket_.postscale);
}

const Codec* BucketRun::CodecOfBucket() const {
  if (bucket_.codec == kIdentityCodec || wire_op() != ReduceOp::kSum) return nullptr;
  const Codec& codec = *services_.codecs[static_cast<size_t>(bucket_.codec)];
  return codec.Accepts(bucket_.dtype) ? &codec : nullptr;
}

Status BucketRun::RunReduction() {
  const Codec* codec = CodecOfBucket();
  if (codec != nullptr && codec->algebra() == Algebra::kGatherOnly &&
      bucket_.kind == Kind::kAllreduce) {
    return RunGatherOnly(*codec);
  }
  if (codec != nullptr && codec->algebra() == Algebra::kGatherOnly) codec = nullptr;
  if (codec != nullptr) return RunFused(job_.items, codec);
  is_in_place_ = true;
  const auto element_bytes = static_cast<int64_t>(SizeOf(bucket_.dtype));
  for (const Segment& segment : SegmentsOf(job_.items, element_bytes, kAloneBytesMin)) {
    RABIT_RETURN_IF_ERROR(RunSegment(segment));
  }
  return Status();
}

Status BucketRun::RunSegment(const Segment& segment) {
  const bool has_result = bucket_.kind == Kind::kAllreduce || bucket_.root == services_.rank;
  if (has_result && segment.is_contiguous && segment.items.front().request() != nullptr) {
    return RunInPlace(segment);
  }
  is_in_place_ = false;
  return RunFused(segment.items, nullptr);
}

Result<std::byte*> BucketRun::OutputOf(const BucketItem& item) const {
  RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(item.tensor->ready->signature.shape));
  return static_cast<std::byte*>(item.request()->output().view.data) +
         static_cast<size_t>(item.partition.offset) * SizeOf(bucket_.dtype);
}

// The output is the buffer: no copy but the one from input to output, and none if they are one.
Status BucketRun::RunInPlace(const Segment& segment) {
  const BucketItem& item = segment.items.front();
  const int64_t count = segment.count;
  RABIT_ASSIGN_OR_RETURN(std::byte* const output, OutputOf(item));
  CopyScaled(bucket_.dtype, InputOf(item, bucket_.dtype), output, count, bucket_.prescale);
  RABIT_RETURN_IF_ERROR(ExchangeReduction(TensorView{output, count, bucket_.dtype, device_}));
  Finalize(output, count);
  return Status();
}

Status BucketRun::RunFused(std::span<const BucketItem> items, const Codec* codec) {
  size_t bytes = 0;
  int64_t count = 0;
  for (const BucketItem& item : items) {
    count += item.partition.count;
    bytes += codec == nullptr
                 ? static_cast<size_t>(item.partition.count) * SizeOf(bucket_.dtype)
                 : static_cast<size_t>(codec->EncodedBytes(item.partition.count, bucket_.dtype));
  }
  RABIT_ASSIGN_OR_RETURN(Bytes buffer, buffer_.Get(*backend_, bytes));
  const DType wire_dtype = codec == nullptr ? bucket_.dtype : codec->WireDType(bucket_.dtype);

  const int64_t pack_ns = NowNs();
  RABIT_RETURN_IF_ERROR(Pack(items, codec, buffer));
  Trace("MEMCPY_IN_FUSION_BUFFER", pack_ns, NowNs());

  const auto wire_count = static_cast<int64_t>(bytes / SizeOf(wire_dtype));
  RABIT_RETURN_IF_ERROR(
      ExchangeReduction(TensorView{buffer.data(), wire_count, wire_dtype, device_}));
  if (bucket_.kind == Kind::kReduce && bucket_.root != services_.rank) return Status();

  const int64_t unpack_ns = NowNs();
  if (codec == nullptr && must_divide()) {
    Divide(bucket_.dtype, buffer.data(), count, group_.size());
  }
  RABIT_RETURN_IF_ERROR(Unpack(items, codec, buffer));
  Trace("MEMCPY_OUT_FUSION_BUFFER", unpack_ns, NowNs());
  return Status();
}

Status BucketRun::ExchangeReduction(const TensorView& buffer) {
  if (buffer.count == 0) return Status();  // on every rank alike
  return Communicate(static_cast<int64_t>(buffer.bytes()), [&] {
    if (bucket_.kind == Kind::kAllreduce) return backend_->Allreduce(lane_, buffer, wire_op());
    return backend_->Reduce(lane_, buffer, wire_op(), group_.IndexOf(bucket_.root));
  });
}

Status BucketRun::Pack(std::span<const BucketItem> items, const Codec* codec, Bytes buffer) {
  size_t at = 0;
  for (const BucketItem& item : items) {
    const int64_t count = item.partition.count;
    const size_t bytes = codec == nullptr
                             ? static_cast<size_t>(count) * SizeOf(bucket_.dtype)
                             : static_cast<size_t>(codec->EncodedBytes(count, bucket_.dtype));
    RABIT_RETURN_IF_ERROR(PackOne(item, codec, buffer.subspan(at, bytes)));
    at += bytes;
  }
  return Status();
}

// A rank that has joined contributes what changes nothing.
Status BucketRun::PackOne(const BucketItem& item, const Codec* codec, Bytes to) {
  const int64_t count = item.partition.count;
  const DType dtype = bucket_.dtype;
  if (codec == nullptr) {
    if (item.request() == nullptr) {
      FillIdentity(wire_op(), dtype, to.data(), count);
    } else {
      CopyScaled(dtype, InputOf(item, dtype), to.data(), count, bucket_.prescale);
    }
    return Status();
  }
  TensorView from{nullptr, count, dtype, device_};
  PartitionState* state = nullptr;
  if (item.request() != nullptr && bucket_.prescale == 1.0) {
    // Encoders only read.
    from.data = const_cast<std::byte*>(InputOf(item, dtype));
    state = StateOf(item, *codec);
  } else {
    RABIT_ASSIGN_OR_RETURN(Bytes scratch, buffer_.GetScratch(from.bytes()));
    from.data = scratch.data();
    if (item.request() == nullptr) {
      FillIdentity(wire_op(), dtype, scratch.data(), count);
    } else {
      CopyScaled(dtype, InputOf(item, dtype), scratch.data(), count, bucket_.prescale);
      state = StateOf(item, *codec);
    }
  }
  return codec->Encode(from, to, state);
}

PartitionState* BucketRun::StateOf(const BucketItem& item, const Codec& codec) {
  const std::string key = NameKey(bucket_.group, item.tensor->ready->name);
  return services_.codec_states.Get(codec, bucket_.codec, key, item.partition, bucket_.dtype);
}

Status BucketRun::Unpack(std::span<const BucketItem> items, const Codec* codec, ConstBytes buffer) {
  size_t at = 0;
  for (const BucketItem& item : items) {
    const int64_t count = item.partition.count;
    const size_t bytes = codec == nullptr
                             ? static_cast<size_t>(count) * SizeOf(bucket_.dtype)
                             : static_cast<size_t>(codec->EncodedBytes(count, bucket_.dtype));
    const ConstBytes from = buffer.subspan(at, bytes);
    at += bytes;
    if (item.request() == nullptr) continue;
    RABIT_ASSIGN_OR_RETURN(std::byte* const output, OutputOf(item));
    if (codec == nullptr) {  // the whole buffer has been divided already
      CopyScaled(bucket_.dtype, from.data(), output, count, post_factor());
      continue;
    }
    RABIT_RETURN_IF_ERROR(codec->Decode(from, TensorView{output, count, bucket_.dtype, device_}));
    Finalize(output, count);
  }
  return Status();
}

// Encodings that cannot be added as they are: everybody gets all of them and adds in rank order, so
// that every rank computes the same bits.
Status BucketRun::RunGatherOnly(const Codec& codec) {
  int64_t bytes = 0;
  for (const BucketItem& item : job_.items) {
    bytes += codec.EncodedBytes(item.partition.count, bucket_.dtype);
  }
  if (count_ == 0) return Status();
  const auto part = static_cast<size_t>(bytes);
  const auto size = static_cast<size_t>(group_.size());
  RABIT_ASSIGN_OR_RETURN(Bytes all, buffer_.Get(*backend_, part * size));
  const Bytes mine = all.subspan(part * static_cast<size_t>(group_.my_index), part);
  RABIT_RETURN_IF_ERROR(Pack(job_.items, &codec, mine));
  const std::vector<int64_t> part_bytes(size, bytes);
  RABIT_RETURN_IF_ERROR(
      Communicate(bytes, [&] { return backend_->Allgather(lane_, mine, all, part_bytes); }));

  size_t at = 0;
  for (const BucketItem& item : job_.items) {
    const int64_t count = item.partition.count;
    const auto encoded = static_cast<size_t>(codec.EncodedBytes(count, bucket_.dtype));
    if (item.request() != nullptr) {
      RABIT_ASSIGN_OR_RETURN(std::byte* const output, OutputOf(item));
      const TensorView to{output, count, bucket_.dtype, device_};
      std::memset(output, 0, to.bytes());
      for (size_t rank = 0; rank < size; ++rank) {
        RABIT_RETURN_IF_ERROR(codec.DecodeAdd(all.subspan(rank * part + at, encoded), to));
      }
      Finalize(output, count);
    }
    at += encoded;
  }
  return Status();
}

void BucketRun::Trace(std::string_view name, int64_t begin_ns, int64_t end_ns,
                      const std::string& arguments) const {
  if (!services_.timeline.is_active()) return;
  for (const BucketItem& item : job_.items) {
    services_.timeline.Span(std::string(Name(bucket_.kind)) + "." + item.tensor->ready->name, name,
                            begin_ns, end_ns, arguments);
  }
}

void BucketRun::Record(int64_t started_ns) const {
  Statistics::BucketRecord record;
  record.kind = bucket_.kind;
  record.partitions = static_cast<int64_t>(job_.items.size());
  for (const BucketItem& item : job_.items) record.tensors += item.partition.is_last ? 1 : 0;
  record.bytes = count_ * static_cast<int64_t>(SizeOf(bucket_.dtype));
  record.wire_bytes = wire_bytes_;
  record.busy_ns = NowNs() - started_ns;
  record.is_in_place = is_in_place_;
  record.backend = backend_->name();
  record.algorithm = algorithm_;
  const Codec* codec = CodecOfBucket();
  record.codec = codec == nullptr ? "identity" : codec->name();
  services_.statistics.AddBucket(record);
}

}  // namespace rabit
