#include "engine/agreed_result.h"

#include <cstring>
#include <string>

#include "arithmetic/reduce.h"
#include "engine/averaging.h"

namespace rabit {
namespace {

template <class T>
void SetNumber(PendingRequest& request, T number) {
  if (Status status = request.PrepareOutput({1}); !status.ok()) return request.SetError(status);
  std::memcpy(request.output().view.data, &number, sizeof number);
}

}  // namespace

bool CarriesData(const Request& request, int64_t bytes_max) {
  const Signature& signature = request.signature;
  const bool is_plain = signature.kind == Kind::kAllreduce && signature.codec.empty() &&
                        signature.backend == kAnyBackend &&
                        signature.device_kind == DeviceKind::kCpu;
  if (!request.is_waited_for || !is_plain) return false;
  const auto bytes = static_cast<int64_t>(request.input.bytes());
  return bytes > 0 && bytes <= bytes_max;
}

void CopyInput(const Request& request, std::vector<std::byte>& data) {
  data.resize(request.input.bytes());
  CopyScaled(request.input.dtype, static_cast<const std::byte*>(request.input.data), data.data(),
             request.input.count, request.signature.prescale);
}

void SetResult(PendingRequest& request, int32_t number) { SetNumber(request, number); }
void SetResult(PendingRequest& request, int64_t number) { SetNumber(request, number); }

void SetResult(PendingRequest& request, const ReadyTensor& ready, int size) {
  const Signature& agreed = ready.signature;
  if (ready.data.size() != request.request.input.bytes()) {  // the network's word, not ours
    return request.SetError(Internal("rank 0 sent " + std::to_string(ready.data.size()) +
                                     " bytes as the result of '" + ready.name + "', which has " +
                                     std::to_string(request.request.input.bytes())));
  }
  if (Status status = request.PrepareOutput(agreed.shape); !status.ok())
    return request.SetError(status);
  auto* const output = static_cast<std::byte*>(request.output().view.data);
  std::memcpy(output, ready.data.data(), ready.data.size());
  ApplyEpilogue(EpilogueOf(agreed.op, agreed.dtype, size, agreed.postscale), agreed.dtype, output,
                agreed.count());
}

}  // namespace rabit
