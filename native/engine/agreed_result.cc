#include "engine/agreed_result.h"

#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/even_rows.h"
#include "base/kind.h"
#include "engine/averaging.h"

namespace rabit {
namespace {

template <class T>
void SetNumber(PendingRequest& request, T number) {
  if (Status status = request.PrepareOutput({1}); !status.ok()) return request.SetError(status);
  std::memcpy(request.output().view.data, &number, sizeof number);
}

bool IsRoot(const Signature& signature, const Group& group) {
  return group.is_member() && group.IndexOf(signature.root) == group.my_index;
}

// Where to put `bytes`, which rank 0 says are a result of this shape.
Result<std::byte*> Place(PendingRequest& request, std::vector<int64_t> shape, size_t bytes) {
  RABIT_RETURN_IF_ERROR(request.PrepareOutput(std::move(shape)));
  const TensorView& output = request.output().view;
  // The bytes come from rank 0 over the network: without this look a defect there would write
  // beyond the output here.
  if (output.bytes() == bytes) return static_cast<std::byte*>(output.data);
  return Internal("rank 0 sent " + std::to_string(bytes) + " bytes as the result of '" +
                  request.request.name + "', which has " + std::to_string(output.bytes()));
}

Status Write(PendingRequest& request, std::vector<int64_t> shape, ConstBytes result) {
  RABIT_ASSIGN_OR_RETURN(std::byte* const to, Place(request, std::move(shape), result.size()));
  std::memcpy(to, result.data(), result.size());
  return Status();
}

Status WriteReduction(PendingRequest& request, const ReadyTensor& ready, const Group& group) {
  const Signature& agreed = ready.signature;
  std::vector<int64_t> shape = agreed.shape;
  ConstBytes mine = ready.data;
  if (agreed.kind == Kind::kReduceScatter) {
    const EvenRows rows{shape[0], group.size()};
    const size_t row_bytes = mine.size() / static_cast<size_t>(shape[0]);
    shape[0] = rows.Of(group.my_index);
    mine = mine.subspan(static_cast<size_t>(rows.Begin(group.my_index)) * row_bytes,
                        static_cast<size_t>(shape[0]) * row_bytes);
  }
  return Write(request, std::move(shape), mine);
}

// Of each rank's input the part for this one.
Status WriteAlltoall(PendingRequest& request, const ReadyTensor& ready, const Group& group) {
  const std::vector<int64_t>& shape = ready.signature.shape;
  const auto size = static_cast<size_t>(group.size());
  const size_t input_bytes = ready.data.size() / size;
  const size_t part_bytes = input_bytes / size;
  RABIT_ASSIGN_OR_RETURN(std::byte * to, Place(request, shape, input_bytes));
  const std::byte* from = ready.data.data() + static_cast<size_t>(group.my_index) * part_bytes;
  for (size_t i = 0; i < size; ++i, to += part_bytes, from += input_bytes)
    std::memcpy(to, from, part_bytes);
  request.SetReceivedSplits(std::vector<int64_t>(size, shape[0] / group.size()));
  return Status();
}

Status WriteResult(PendingRequest& request, const ReadyTensor& ready, const Group& group) {
  const Signature& agreed = ready.signature;
  if (agreed.kind == Kind::kReduce && !IsRoot(agreed, group)) return Status();
  if (TraitsOf(agreed.kind).carried == Carried::kReduced)
    return WriteReduction(request, ready, group);
  if (agreed.kind == Kind::kAlltoall) return WriteAlltoall(request, ready, group);
  std::vector<int64_t> shape = agreed.shape;
  if (!ready.extents.empty())
    shape[0] = std::accumulate(ready.extents.begin(), ready.extents.end(), int64_t{0});
  return Write(request, std::move(shape), ready.data);
}

}  // namespace

bool CarriesData(const Request& request, int64_t bytes_max, const Group& group) {
  const Signature& signature = request.signature;
  const Carried carried = TraitsOf(signature.kind).carried;
  const bool is_plain = signature.codec.empty() && signature.backend == kAnyBackend &&
                        signature.device_kind == DeviceKind::kCpu && signature.splits.empty();
  if (carried == Carried::kNothing || !request.is_waited_for || !is_plain) return false;
  const bool brings = carried != Carried::kOfRoot || IsRoot(signature, group);
  const int64_t times = carried == Carried::kOneByOne ? group.size() : 1;
  const auto bytes = static_cast<int64_t>(request.input.bytes());
  return brings && bytes > 0 && bytes <= bytes_max / times;
}

void CopyInput(const Request& request, std::vector<std::byte>& data) {
  const Signature& signature = request.signature;
  const double factor = TraitsOf(signature.kind).reduces ? signature.prescale : 1.0;
  // The thread that does the step makes the copy, some time after the submission: the caller's
  // input must stay until the request is done.
  data.resize(request.input.bytes());
  CopyScaled(request.input.dtype, static_cast<const std::byte*>(request.input.data), data.data(),
             request.input.count, factor);
}

void SetResult(PendingRequest& request, int32_t number) { SetNumber(request, number); }
void SetResult(PendingRequest& request, int64_t number) { SetNumber(request, number); }

void SetResult(PendingRequest& request, const ReadyTensor& ready, const Group& group) {
  if (const Status status = WriteResult(request, ready, group); !status.ok())
    request.SetError(status);
}

}  // namespace rabit
