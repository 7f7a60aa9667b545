#include "engine/request_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/kind.h"

namespace rabit {
namespace {

constexpr int64_t kElementsMax = int64_t{1} << 46;

// Whether this rank hands data in; of kinds that move data.
bool ReadsInput(const Signature& signature, int rank) {
  if (signature.kind == Kind::kRecv) return false;
  return !TraitsOf(signature.kind).starts_at_root || signature.root == rank;
}

class Check {
 public:
  Check(const RequestLimits& limits, const Group& group, Request& request)
      : limits_(limits),
        group_(group),
        request_(request),
        signature_(request.signature),
        traits_(TraitsOf(request.signature.kind)) {}

  Status Run() {
    RABIT_RETURN_IF_ERROR(CheckName());
    RABIT_RETURN_IF_ERROR(CheckReferences());
    RABIT_RETURN_IF_ERROR(CheckDevice());
    RABIT_RETURN_IF_ERROR(CheckArithmetic());
    RABIT_RETURN_IF_ERROR(CheckShape());
    RABIT_RETURN_IF_ERROR(CheckMemory());
    RABIT_RETURN_IF_ERROR(CheckCodec());
    return CheckSplits();
  }

 private:
  Status Bad(const std::string& why) const {
    return InvalidArgument(std::string(Name(signature_.kind)) + " '" + request_.name +
                           "' on rank " + std::to_string(limits_.rank) + ": " + why);
  }

  Status CheckName() const {
    if (!request_.name.empty() && request_.name.size() <= kRequestNameBytesMax) return Status();
    return InvalidArgument("a request on rank " + std::to_string(limits_.rank) + " has a name of " +
                           std::to_string(request_.name.size()) +
                           " bytes: names tell tensors apart and have 1 to " +
                           std::to_string(kRequestNameBytesMax) + " bytes; pass such a name");
  }

  Status CheckReferences() const {
    if (!group_.is_member()) {
      return Bad("this rank is not in group " + std::to_string(group_.id) +
                 ": only members take part; submit it on members only");
    }
    if (signature_.kind == Kind::kJoin && group_.id != kWorld) {
      return Bad("join is for all ranks: group " + std::to_string(group_.id) +
                 " has only some; use group 0");
    }
    if (traits_.names_a_rank() && group_.IndexOf(signature_.root) < 0) {
      return Bad("rank " + std::to_string(signature_.root) + " is not in group " +
                 std::to_string(group_.id) + ", which has " + std::to_string(group_.size()) +
                 " ranks: the root or partner must be one of them; correct it");
    }
    if (traits_.is_pair && signature_.root == limits_.rank) {
      return Bad("the partner is this rank itself: a message needs two ranks; name another one");
    }
    if (signature_.backend < kAnyBackend ||
        (signature_.backend >= 0 && static_cast<size_t>(signature_.backend) >= limits_.backends)) {
      return Bad("there is no backend " + std::to_string(signature_.backend) +
                 ": this engine has " + std::to_string(limits_.backends) + "; pass -1 for any");
    }
    return Status();
  }

  Status CheckDevice() const {
    const Device& device = request_.device;
    const bool has_output = request_.output.data != nullptr;
    const Device& other = request_.output.device;
    // The result of a tensor on a device may go to the memory of the host.
    const bool is_apart = other.kind != DeviceKind::kCpu &&
                          (device.kind != other.kind || device.index != other.index);
    if (has_output && is_apart) {
      return Bad("the input is on " + Text(device) + " and the output on " + Text(other) +
                 "; pass both on one device");
    }
    if (device.kind == DeviceKind::kCpu) return Status();
    if (device.kind != DeviceKind::kCuda) {
      return Bad("the tensor is on " + Text(device) +
                 ": tensors on the CPU and of CUDA travel; copy it to the CPU first");
    }
    // The first question of a process to the driver loads CUDA; a process without tensors on a
    // device never gets here.
    if (!traits_.moves_data) return Bad("it moves no data of a device; pass a tensor on the CPU");
    const Result<std::shared_ptr<DeviceDriver>> driver = limits_.devices->driver();
    if (!driver.ok()) {
      const Status bad = Bad("the tensor is on " + Text(device) +
                             ", which cannot be reached: " + driver.status().message());
      return Status(driver.status().code(), bad.message());
    }
    if (device.index >= 0 && device.index < (*driver)->devices()) return Status();
    return Bad("the tensor is on " + Text(device) + ", and the driver has " +
               std::to_string((*driver)->devices()) + "; look at CUDA_VISIBLE_DEVICES");
  }

  static std::string Text(const Device& device) {
    if (device.kind == DeviceKind::kCpu) return "the CPU";
    const bool is_cuda = device.kind == DeviceKind::kCuda;
    return (is_cuda ? "cuda:"
                    : "device kind " + std::to_string(static_cast<int>(device.kind)) + ":") +
           std::to_string(device.index);
  }

  Status CheckArithmetic() const {
    if (!std::isfinite(signature_.prescale) || !std::isfinite(signature_.postscale)) {
      return Bad("the scale factors are not finite: every result would be NaN; pass finite ones");
    }
    if (!traits_.reduces) return Status();
    if (!Supports(signature_.dtype, signature_.op)) {
      const Status bad =
          Bad(std::string(Name(signature_.op)) + " of " + std::string(Name(signature_.dtype)) +
              " is not defined: " + std::string(LimitOf(signature_.dtype)) +
              "; use another op or type");
      return Unsupported(bad.message());
    }
    return Status();
  }

  Status CheckCodec() const {
    const TensorView& residual = request_.residual;
    if (signature_.codec.empty()) {
      if (residual.data == nullptr) return Status();
      return Bad("it has a residual and no codec, which alone could use it; pass a codec as well");
    }
    const Result<CodecHold> codec = limits_.codecs->Find(signature_.codec);
    if (!codec.ok()) return Bad(codec.status().message());
    const Status accepts = (*codec)->Accepts(signature_.kind, signature_.dtype);
    if (!accepts.ok()) return Bad(accepts.message());
    if (signature_.op != ReduceOp::kSum && signature_.op != ReduceOp::kAverage) {
      return Bad("a codec cannot be combined with " + std::string(Name(signature_.op)) +
                 ": compressed values can only be summed or averaged; use no codec");
    }
    if (residual.data == nullptr) return Status();
    if ((*codec)->residuals() == 0) {
      return Bad("codec '" + signature_.codec + "' keeps no residual; pass none");
    }
    if (residual.count == request_.input.count && residual.dtype == signature_.dtype) {
      return Status();
    }
    return Bad("the residual has " + std::to_string(residual.count) + " elements of " +
               std::string(Name(residual.dtype)) + ", the input " +
               std::to_string(request_.input.count) + " of " + std::string(Name(signature_.dtype)) +
               ": pass one of the input's shape and dtype");
  }

  // The bits travel as the only extent of the signature.
  Status CheckVote() {
    const TensorView& input = request_.input;
    if (input.count != 1 || input.dtype != DType::kInt64 || input.data == nullptr) {
      return Bad("the input has " + std::to_string(input.count) + " elements of " +
                 std::string(Name(input.dtype)) + ": a vote is one int64; pass that");
    }
    int64_t bits = 0;
    std::memcpy(&bits, input.data, sizeof bits);
    if (bits < 0) {
      return Bad("the vote is " + std::to_string(bits) +
                 ": it is a set of 63 bits and so not negative; pass such a number");
    }
    signature_.shape = {bits};
    return Status();
  }

  Status CheckShape() {
    if (signature_.kind == Kind::kVote) return CheckVote();
    if (!traits_.moves_data) {
      // Ranks compare signatures field by field, so what has no meaning for this kind must be equal
      // everywhere.
      signature_.shape.clear();
      signature_.dtype = DType::kInt32;
      return Status();
    }
    int64_t count = 1;
    for (int64_t extent : signature_.shape) {
      if (extent < 0 || (extent > 0 && count > kElementsMax / extent)) {
        return Bad("an extent of " + std::to_string(extent) +
                   " cannot be: extents are not negative and the whole has at most 2^46 elements");
      }
      count *= extent;
    }
    if (signature_.axis_order != 0) RABIT_RETURN_IF_ERROR(CheckAxisOrder());
    const bool is_scatter_leaf =
        signature_.kind == Kind::kScatter && signature_.root != limits_.rank;
    if (traits_.needs_rows && signature_.shape.empty() && !is_scatter_leaf) {
      return Bad(
          "the tensor is a scalar: it is cut or joined along axis 0, which a scalar does "
          "not have; reshape it to one element");
    }
    return Status();
  }

  Status CheckAxisOrder() const {
    std::vector<int> axes = AxesOf(signature_.axis_order);
    std::sort(axes.begin(), axes.end());
    std::vector<int> all(axes.size());
    std::iota(all.begin(), all.end(), 0);
    if (axes == all) return Status();
    return Bad("the axis order " + std::to_string(signature_.axis_order) +
               " does not name each axis once: pass one that does, or 0 for row-major memory");
  }

  Status CheckMemory() {
    if (!traits_.moves_data) return Status();
    const int64_t count = signature_.count();
    const bool reads = ReadsInput(signature_, limits_.rank);
    if (reads && (request_.input.count != count || request_.input.dtype != signature_.dtype)) {
      return Bad("the input has " + std::to_string(request_.input.count) + " elements of " +
                 std::string(Name(request_.input.dtype)) + " but its shape is " +
                 rabit::Describe(signature_) + ": they must agree; correct the shape");
    }
    if (reads && count > 0 && request_.input.data == nullptr) {
      return Bad("the input has no memory: " + std::to_string(count) +
                 " elements are expected; pass a pointer");
    }
    if (request_.output.data == nullptr) return Status();
    if (request_.output.dtype != signature_.dtype) {
      return Bad("the output is " + std::string(Name(request_.output.dtype)) +
                 " but the input is " + std::string(Name(signature_.dtype)) +
                 ": the engine does not convert; pass an output of the same dtype");
    }
    // Other kinds learn the size of the result from the agreement; PrepareOutput looks at it there.
    if (traits_.keeps_shape && request_.output.count != count) {
      return Bad("the output has " + std::to_string(request_.output.count) + " elements but " +
                 std::to_string(count) + " will arrive: pass an output of the input's shape");
    }
    return Status();
  }

  Status CheckSplits() {
    const bool is_alltoall = signature_.kind == Kind::kAlltoall;
    const bool is_scatter_root =
        signature_.kind == Kind::kScatter && signature_.root == limits_.rank;
    if (!is_alltoall && !is_scatter_root) {
      signature_.splits.clear();
      return Status();
    }
    const int64_t rows = signature_.shape[0];
    const int64_t size = group_.size();
    std::vector<int64_t> splits = std::exchange(signature_.splits, {});
    if (splits.empty()) {
      if (is_alltoall && rows % size != 0) {
        return Bad("extent 0 is " + std::to_string(rows) + ", which " + std::to_string(size) +
                   " ranks cannot share evenly: without splits every rank gets as many rows; pass "
                   "splits");
      }
      for (int64_t i = 0; i < size; ++i) splits.push_back(rows / size + (i < rows % size ? 1 : 0));
      KeepSplits(std::move(splits));
      return Status();
    }
    const bool is_complete = static_cast<int64_t>(splits.size()) == size;
    const bool has_negative =
        std::any_of(splits.begin(), splits.end(), [](int64_t split) { return split < 0; });
    int64_t sum = 0;
    // A split that is too large counts as one row too many: a sum of arbitrary numbers could
    // overflow and come out right.
    for (int64_t split : splits) sum += split > rows ? rows + 1 : split;
    if (is_complete && !has_negative && sum == rows) {
      KeepSplits(std::move(splits));
      return Status();
    }
    return Bad("the splits are " + std::to_string(splits.size()) + " numbers that sum to " +
               std::to_string(sum) + ": there must be one for each of " + std::to_string(size) +
               " ranks, none negative, and they must sum to extent 0, which is " +
               std::to_string(rows) + "; correct them");
  }

  // Those of an alltoall stay on this rank: in the agreement they would be a matrix.
  void KeepSplits(std::vector<int64_t> splits) {
    if (signature_.kind == Kind::kScatter) {
      signature_.splits = std::move(splits);
      return;
    }
    const bool is_even = std::all_of(splits.begin(), splits.end(),
                                     [&](int64_t split) { return split == splits[0]; });
    if (!is_even) signature_.splits = {signature_.shape[0]};
    request_.splits = std::move(splits);
  }

  const RequestLimits& limits_;
  const Group& group_;
  Request& request_;
  Signature& signature_;
  const KindTraits& traits_;
};

}  // namespace

Status CheckRequest(const RequestLimits& limits, const Group& group, Request& request) {
  return Check(limits, group, request).Run();
}

}  // namespace rabit
