#include "collective/widened.h"

#include "arithmetic/reduce.h"
#include "collective/chunks.h"

namespace rabit {
namespace {

constexpr int64_t kWidePieceBytes = 16 << 20;  // bounds the memory

}  // namespace

Result<TensorView> Widen(const TensorView& values, const CollectiveCall& call, Epilogue& epilogue) {
  TensorView wide{nullptr, values.count, WideOf(values.dtype), {}};
  RABIT_ASSIGN_OR_RETURN(std::byte* const memory, call.scratch.Apart().Get(wide.bytes()));
  wide.data = memory;
  Convert(values.dtype, static_cast<const std::byte*>(values.data), wide.dtype, memory,
          values.count);
  if (values.dtype != DType::kBfloat16) return wide;
  // float32 reaches no further than bfloat16, but has smaller values: this division is exact.
  double headroom = 1.0;
  for (int reach = 1; reach < call.size(); reach *= 2) headroom /= 2;
  Scale(wide.dtype, memory, memory, values.count, headroom);
  epilogue.factor /= headroom;
  return wide;
}

Status RunWidened(AllreduceRun run, const CollectiveCall& call, const AllreduceArgs& args) {
  const DType dtype = args.buffer.dtype;
  if (!EndsWide(dtype, args.epilogue)) return run(call, args);
  const Elements narrow(args.buffer);
  const Range whole{0, args.buffer.count};
  const int64_t piece_count = kWidePieceBytes / static_cast<int64_t>(SizeOf(WideOf(dtype)));
  // Pieces follow each other under the same tags: the transport keeps their order.
  for (int64_t k = 0; k < ChunksIn(whole, piece_count); ++k) {
    const Range range = ChunkOf(whole, piece_count, k);
    const TensorView from{narrow.At(range.begin), range.count(), dtype, {}};
    AllreduceArgs piece = args;
    RABIT_ASSIGN_OR_RETURN(piece.buffer, Widen(from, call, piece.epilogue));
    RABIT_RETURN_IF_ERROR(run(call, piece));
    Convert(piece.buffer.dtype, static_cast<const std::byte*>(piece.buffer.data), dtype,
            narrow.At(range.begin), range.count());
  }
  return Status();
}

}  // namespace rabit
