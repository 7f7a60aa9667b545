#include "control/carried_data.h"

#include <algorithm>
#include <string>

#include "arithmetic/reduce.h"
#include "base/dtype.h"

namespace rabit {
namespace {

constexpr size_t kMembersMax = 1024;  // inputs of one Reduce

}  // namespace

Status CheckCarried(const Signature& signature, ConstBytes data) {
  const size_t element_bytes = SizeOf(signature.dtype);
  const bool fits = data.size() % element_bytes == 0 &&
                    static_cast<int64_t>(data.size() / element_bytes) == signature.count();
  if (signature.kind == Kind::kAllreduce && fits) return {};
  return Internal(std::to_string(data.size()) + " bytes of data came with " +
                  std::string(Name(signature.kind)) + " of " + Describe(signature));
}

void CarriedData::Add(size_t member, size_t members, ConstBytes data) {
  if (members > kMembersMax) return;
  bytes_ = data.size();
  members_ = members;
  inputs_.resize(members * bytes_);
  std::copy(data.begin(), data.end(),
            inputs_.begin() + static_cast<std::ptrdiff_t>(member * bytes_));
  ++added_;
}

bool CarriedData::IsComplete() const { return added_ > 0 && added_ == members_; }

std::vector<std::byte> CarriedData::Reduce(const Signature& signature) const {
  std::vector<const std::byte*> inputs(members_);
  for (size_t i = 0; i < members_; ++i) inputs[i] = inputs_.data() + i * bytes_;
  std::vector<std::byte> result(bytes_);
  rabit::Reduce(signature.op, signature.dtype, inputs, result.data(), signature.count());
  return result;
}

}  // namespace rabit
