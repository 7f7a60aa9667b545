// Reductions that travel compressed: hands the bucket's partitions and its wire to the codec.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "arithmetic/reduce.h"
#include "codec/random.h"
#include "engine/averaging.h"
#include "engine/bucket_work.h"
#include "engine/fusion_buffer.h"

namespace rabit {
namespace {

// The exchange of one bucket, as codecs see it.
class Wire final : public Exchange {
 public:
  explicit Wire(BucketWork& work)
      : work_(work), exchange_(work.exchange), left_(work.exchange.epilogue()) {}

  // What the codec's exchanges have not done to the result.
  const Epilogue& left() const { return left_; }

  int rank() const override { return work_.group().my_index; }
  int size() const override { return work_.group().size(); }

  Status Allreduce(const TensorView& in_out) override {
    RABIT_RETURN_IF_ERROR(ExchangeReduction(work_, in_out, left_));
    return exchange_.Settle();
  }

  Status Allgather(ConstBytes mine, Bytes all, std::span<const int64_t> part_bytes) override {
    const Load load{std::accumulate(part_bytes.begin(), part_bytes.end(), int64_t{0}),
                    std::find(part_bytes.begin(), part_bytes.end(), 0) != part_bytes.end()};
    RABIT_RETURN_IF_ERROR(exchange_.Communicate(
        As(Kind::kAllgather), load, static_cast<int64_t>(mine.size()), [&](Backend& backend) {
          return backend.Allgather(exchange_.lane(), mine, all, part_bytes);
        }));
    return exchange_.Settle();
  }

  // What the other ranks exchange is not known here: for rules by size it counts as nothing.
  Status Alltoall(ConstBytes in, std::span<const int64_t> send_bytes, Bytes out,
                  std::span<const int64_t> receive_bytes) override {
    RABIT_RETURN_IF_ERROR(
        exchange_.Alltoall(As(Kind::kAlltoall), {}, in, send_bytes, out, receive_bytes));
    return exchange_.Settle();
  }

  // Where the bucket as a whole is exchanged; the codec's other exchanges may go elsewhere.
  std::vector<EncodedSlice> DivideEncoded(int64_t bytes, int64_t largest) override {
    return exchange_.executor().DivideEncoded(exchange_.lane(), bytes, largest);
  }
  Status SumEncoded(Bytes in_out, std::span<const EncodedSlice> slices) override {
    const auto bytes = static_cast<int64_t>(in_out.size());
    RABIT_RETURN_IF_ERROR(exchange_.CommunicateBy(
        exchange_.route(), work_.bucket().kind, bytes, bytes,
        [&](Backend& backend) { return backend.SumEncoded(exchange_.lane(), in_out, slices); }));
    return exchange_.Settle();
  }

  Result<Bytes> Scratch(size_t slot, size_t bytes) override {
    if (slot < kScratchSlots) return work_.memory.Scratch(FusionBuffer::kOfCodec + slot, bytes);
    return Internal("a codec asks for scratch " + std::to_string(slot) + " of " +
                    std::to_string(kScratchSlots) + "; report this");
  }

 private:
  Work As(Kind kind) const {
    Work work = work_.bucket();
    work.kind = kind;
    return work;
  }

  BucketWork& work_;
  BucketExchange& exchange_;
  Epilogue left_;
};

// `scaled`: where the scaled input goes; null: it is not scaled.
Result<CodecPart> CodecPartOf(BucketWork& work, const BucketItem& item, const Codec& codec,
                              std::byte* scaled) {
  const int64_t count = item.partition.count;
  const DType dtype = work.bucket().dtype;
  CodecPart part;
  part.in = part.out = part.residual = part.sum_residual = TensorView{nullptr, count, dtype, {}};
  part.offset = item.partition.offset;
  const PendingRequest* const pending = item.request();
  // A rank that has joined knows no seed.  What it encodes for all is rounded by other numbers
  // than another rank would take, and decoded alike everywhere.
  part.key = KeyOfTensor(pending == nullptr ? 0 : pending->request.seed, item.tensor->ready->name);
  if (pending == nullptr) return part;
  const std::byte* input = work.memory.Input(item);
  if (scaled != nullptr) {
    CopyScaled(dtype, input, scaled, count, work.exchange.input_scale());
    input = scaled;
  }
  part.in.data = const_cast<std::byte*>(input);  // codecs only read it
  if (pending->request.residual.data != nullptr) {
    auto* const first = static_cast<std::byte*>(pending->request.residual.data) +
                        static_cast<size_t>(item.partition.offset) * SizeOf(dtype);
    part.residual.data = first;
    if (codec.residuals() == 2) part.sum_residual.data = first + pending->request.input.bytes();
  }
  const bool has_result = work.bucket().kind == Kind::kAllreduce || work.is_root();
  if (!has_result) return part;
  RABIT_ASSIGN_OR_RETURN(part.out.data, OutputLikeInput(work, item));
  return part;
}

}  // namespace

Status RunCodec(BucketWork& work, CodecSet& codecs) {
  const Bucket& bucket = work.bucket();
  RABIT_ASSIGN_OR_RETURN(const CodecHold codec, codecs.Find(bucket.codec));
  const bool is_scaled = work.exchange.input_scale() != 1.0;
  int64_t count = 0;
  for (const BucketItem& item : work.job.items) count += item.partition.count;
  const size_t scaled_bytes =
      is_scaled ? static_cast<size_t>(count) * work.element_bytes() : size_t{0};
  RABIT_ASSIGN_OR_RETURN(Bytes scaled, work.memory.Scratch(FusionBuffer::kScratch, scaled_bytes));
  std::vector<CodecPart> parts;
  parts.reserve(work.job.items.size());
  for (const BucketItem& item : work.job.items) {
    RABIT_ASSIGN_OR_RETURN(CodecPart part,
                           CodecPartOf(work, item, *codec, is_scaled ? scaled.data() : nullptr));
    if (is_scaled) scaled = scaled.subspan(part.in.bytes());
    parts.push_back(part);
  }
  Wire wire(work);
  RABIT_RETURN_IF_ERROR(codec->Reduce(wire, parts));
  for (const CodecPart& part : parts) {
    auto* const result = static_cast<std::byte*>(part.out.data);
    if (result != nullptr) ApplyEpilogue(wire.left(), bucket.dtype, result, part.out.count);
  }
  return Status();
}

}  // namespace rabit
