#include "collective/reduce_to.h"

#include <cstring>
#include <vector>

#include "arithmetic/reduce.h"
#include "base/measured.h"
#include "collective/chunks.h"
#include "collective/direct.h"

namespace rabit {
Status ReduceToRoot(const CollectiveCall& call, const TensorView& buffer, ReduceOp op, int root,
                    const Epilogue& epilogue) {
  const Elements elements(buffer);
  if (call.size() == 1 || buffer.count == 0) {
    ApplyEpilogue(epilogue, buffer.dtype, elements.At(0), buffer.count);
    return Status();
  }
  const bool is_single_step = static_cast<int64_t>(buffer.bytes()) <= kSingleStepReduceBytesMax;
  std::vector<int64_t> offsets;
  for (int i = 0; i < call.size(); ++i) {
    const int64_t all_to_root = i <= root ? 0 : buffer.count;
    offsets.push_back(is_single_step ? all_to_root
                                     : PartOf({0, buffer.count}, call.size(), i).begin);
  }
  offsets.push_back(buffer.count);
  return ReduceByOwners(
      call, {.in = elements.At(0),
             .out = elements.At(offsets[static_cast<size_t>(call.rank())]),
             .all = elements.At(0),
             .part_offsets = offsets,
             .dtype = buffer.dtype,
             .op = op,
             .result_goes_to = is_single_step ? ResultGoesTo::kOwner : ResultGoesTo::kRoot,
             .root = root,
             .epilogue = epilogue});
}

Status ReduceScatter(const CollectiveCall& call, const TensorView& in, const TensorView& out,
                     std::span<const int64_t> part_counts, ReduceOp op, const Epilogue& epilogue) {
  std::vector<int64_t> offsets = {0};
  for (int64_t count : part_counts) offsets.push_back(offsets.back() + count);
  if (call.size() == 1) {
    if (out.data != in.data && in.count > 0) std::memmove(out.data, in.data, in.bytes());
    ApplyEpilogue(epilogue, out.dtype, static_cast<std::byte*>(out.data), out.count);
    return Status();
  }
  return ReduceByOwners(call, {.in = static_cast<const std::byte*>(in.data),
                               .out = static_cast<std::byte*>(out.data),
                               .part_offsets = offsets,
                               .dtype = in.dtype,
                               .op = op,
                               .epilogue = epilogue});
}

}  // namespace rabit
