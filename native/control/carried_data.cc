#include "control/carried_data.h"

#include <cstdint>
#include <string>

#include "arithmetic/reduce.h"
#include "base/dtype.h"
#include "base/epilogue.h"

namespace rabit {
namespace {

constexpr size_t kMembersMax = 1024;  // inputs of one Reduce

// Whether so many bytes are `times` what the signature describes.
bool IsTimes(const Signature& signature, int64_t times, size_t bytes) {
  const size_t element_bytes = SizeOf(signature.dtype);
  const auto elements = static_cast<int64_t>(bytes / element_bytes);
  return bytes % element_bytes == 0 && elements % times == 0 &&
         elements / times == signature.count();
}

// Whether so many bytes are those of `rows` together, of what the signature describes.
bool IsOf(const std::vector<int64_t>& rows, const Signature& signature, size_t bytes) {
  Signature row = signature;
  if (row.shape.empty()) return false;
  row.shape[0] = 1;
  int64_t sum = 0;
  for (const int64_t each : rows) {
    if (each < 0 || __builtin_add_overflow(sum, each, &sum)) return false;
  }
  return sum > 0 && IsTimes(row, sum, bytes);
}

}  // namespace

Status CheckCarried(const Signature& signature, ConstBytes data) {
  const bool may_be = TraitsOf(signature.kind).carried != Carried::kNothing;
  if (may_be && IsTimes(signature, 1, data.size())) return {};
  return Internal(std::to_string(data.size()) + " bytes of data came with " +
                  std::string(Name(signature.kind)) + " of " + Describe(signature));
}

Status CheckCarriedResult(const ReadyTensor& ready, int size) {
  const Signature& signature = ready.signature;
  bool fits = TraitsOf(signature.kind).carried != Carried::kNothing;
  if (signature.kind == Kind::kAlltoall) {
    fits = ready.extents.empty() && IsTimes(signature, size, ready.data.size());
  } else if (signature.kind == Kind::kAllgather && !ready.extents.empty()) {
    fits = IsOf(ready.extents, signature, ready.data.size());
  } else {
    fits = fits && IsTimes(signature, 1, ready.data.size());
  }
  if (fits) return {};
  return Internal("rank 0 sent " + std::to_string(ready.data.size()) + " bytes as the result of '" +
                  ready.name + "', " + std::string(Name(signature.kind)) + " of " +
                  Describe(signature) + " on " + std::to_string(size) + " ranks");
}

void CarriedData::Add(size_t member, size_t members, ConstBytes data) {
  if (members > kMembersMax) return;
  inputs_.resize(members);
  inputs_[member] = {bytes_.size(), data.size()};
  bytes_.insert(bytes_.end(), data.begin(), data.end());
  ++added_;
}

bool CarriedData::IsComplete(Carried carried) const {
  if (added_ == 0 || added_ < inputs_.size()) return false;
  return carried != Carried::kOneByOne || bytes_.size() <= kCarriedBytesMax;
}

std::vector<std::byte> CarriedData::Result(const Signature& signature) const {
  const Carried carried = TraitsOf(signature.kind).carried;
  if (carried == Carried::kOfRoot) return bytes_;
  std::vector<std::byte> result;
  if (carried == Carried::kOneByOne) {
    result.reserve(bytes_.size());
    for (const Input& each : inputs_) {
      const ConstBytes input = ConstBytes(bytes_).subspan(each.begin, each.bytes);
      result.insert(result.end(), input.begin(), input.end());
    }
    return result;
  }
  std::vector<const std::byte*> inputs;
  for (const Input& each : inputs_) inputs.push_back(bytes_.data() + each.begin);
  result.resize(inputs_[0].bytes);
  const Epilogue epilogue = EpilogueOf(signature.op, signature.dtype,
                                       static_cast<int>(inputs.size()), signature.postscale);
  rabit::Reduce(signature.op, signature.dtype, inputs, result.data(),
                static_cast<int64_t>(result.size() / SizeOf(signature.dtype)), epilogue);
  return result;
}

}  // namespace rabit
