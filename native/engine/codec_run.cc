// Reductions that travel compressed: hands the bucket's partitions and its wire to the codec.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "arithmetic/reduce.h"
#include "codec/random.h"
#include "engine/averaging.h"
#include "engine/bucket_run.h"

namespace rabit {

// The exchange of one bucket.
class BucketRun::Wire final : public Exchange {
 public:
  explicit Wire(BucketRun& run) : run_(run), left_(run.epilogue()) {}

  // What the codec's exchanges have not done to the result.
  const Epilogue& left() const { return left_; }

  int rank() const override { return run_.group_.my_index; }
  int size() const override { return run_.group_.size(); }

  Status Allreduce(const TensorView& in_out) override {
    RABIT_RETURN_IF_ERROR(run_.ExchangeReduction(in_out, left_));
    return run_.Settle();
  }

  Status Allgather(ConstBytes mine, Bytes all, std::span<const int64_t> part_bytes) override {
    const Load load{std::accumulate(part_bytes.begin(), part_bytes.end(), int64_t{0}),
                    std::find(part_bytes.begin(), part_bytes.end(), 0) != part_bytes.end()};
    RABIT_RETURN_IF_ERROR(run_.Communicate(
        As(Kind::kAllgather), load, static_cast<int64_t>(mine.size()),
        [&](Backend& backend) { return backend.Allgather(run_.lane_, mine, all, part_bytes); }));
    return run_.Settle();
  }

  // What the other ranks exchange is not known here: for rules by size it counts as nothing.
  Status Alltoall(ConstBytes in, std::span<const int64_t> send_bytes, Bytes out,
                  std::span<const int64_t> receive_bytes) override {
    RABIT_RETURN_IF_ERROR(run_.Communicate(
        As(Kind::kAlltoall), {}, static_cast<int64_t>(in.size()), [&](Backend& backend) {
          return backend.Alltoall(run_.lane_, in, send_bytes, out, receive_bytes);
        }));
    return run_.Settle();
  }

  // Where the bucket as a whole is exchanged; the codec's other exchanges may go elsewhere.
  std::vector<EncodedSlice> DivideEncoded(int64_t bytes, int64_t largest) override {
    return run_.executor().DivideEncoded(run_.lane_, bytes, largest);
  }
  Status SumEncoded(Bytes in_out, std::span<const EncodedSlice> slices) override {
    const auto bytes = static_cast<int64_t>(in_out.size());
    RABIT_RETURN_IF_ERROR(run_.CommunicateBy(
        run_.route_, run_.bucket_.kind, bytes, bytes,
        [&](Backend& backend) { return backend.SumEncoded(run_.lane_, in_out, slices); }));
    return run_.Settle();
  }

  Result<Bytes> Scratch(size_t slot, size_t bytes) override {
    if (slot < kScratchSlots) return run_.buffer_.Get(FusionBuffer::kOfCodec + slot, bytes);
    return Internal("a codec asks for scratch " + std::to_string(slot) + " of " +
                    std::to_string(kScratchSlots) + "; report this");
  }

 private:
  Work As(Kind kind) const {
    Work work = run_.bucket_;
    work.kind = kind;
    return work;
  }

  BucketRun& run_;
  Epilogue left_;
};

Status BucketRun::RunCodec() {
  RABIT_ASSIGN_OR_RETURN(const CodecHold codec, services_.codecs.Find(bucket_.codec));
  const bool is_scaled = bucket_.prescale != 1.0;
  const size_t scaled_bytes =
      is_scaled ? static_cast<size_t>(count_) * SizeOf(bucket_.dtype) : size_t{0};
  RABIT_ASSIGN_OR_RETURN(Bytes scaled, buffer_.Get(FusionBuffer::kScratch, scaled_bytes));
  std::vector<CodecPart> parts;
  parts.reserve(job_.items.size());
  for (const BucketItem& item : job_.items) {
    RABIT_ASSIGN_OR_RETURN(CodecPart part,
                           CodecPartOf(item, *codec, is_scaled ? scaled.data() : nullptr));
    if (is_scaled) scaled = scaled.subspan(part.in.bytes());
    parts.push_back(part);
  }
  Wire wire(*this);
  RABIT_RETURN_IF_ERROR(codec->Reduce(wire, parts));
  for (const CodecPart& part : parts) {
    auto* const result = static_cast<std::byte*>(part.out.data);
    if (result != nullptr) ApplyEpilogue(wire.left(), bucket_.dtype, result, part.out.count);
  }
  return Status();
}

// `scaled`: where the scaled input goes; null: it is not scaled.
Result<CodecPart> BucketRun::CodecPartOf(const BucketItem& item, const Codec& codec,
                                         std::byte* scaled) const {
  const int64_t count = item.partition.count;
  const DType dtype = bucket_.dtype;
  CodecPart part;
  part.in = part.out = part.residual = part.sum_residual = TensorView{nullptr, count, dtype, {}};
  part.offset = item.partition.offset;
  const PendingRequest* const pending = item.request();
  // A rank that has joined knows no seed.  What it encodes for all is rounded by other numbers
  // than another rank would take, and decoded alike everywhere.
  part.key = KeyOfTensor(pending == nullptr ? 0 : pending->request.seed, item.tensor->ready->name);
  if (pending == nullptr) return part;
  const std::byte* input = InputOf(item);
  if (scaled != nullptr) {
    CopyScaled(dtype, input, scaled, count, bucket_.prescale);
    input = scaled;
  }
  part.in.data = const_cast<std::byte*>(input);  // codecs only read it
  if (pending->request.residual.data != nullptr) {
    auto* const first = static_cast<std::byte*>(pending->request.residual.data) +
                        static_cast<size_t>(item.partition.offset) * SizeOf(dtype);
    part.residual.data = first;
    if (codec.residuals() == 2) part.sum_residual.data = first + pending->request.input.bytes();
  }
  const bool has_result = bucket_.kind == Kind::kAllreduce || bucket_.root == services_.rank;
  if (!has_result) return part;
  RABIT_ASSIGN_OR_RETURN(part.out.data, OutputOf(item));
  return part;
}

}  // namespace rabit
