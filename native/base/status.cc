#include "base/status.h"

#include <utility>

namespace rabit {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk: return "Ok";
    case Code::kInvalidArgument: return "InvalidArgument";
    case Code::kMismatch: return "Mismatch";
    case Code::kUnsupported: return "Unsupported";
    case Code::kPeerLost: return "PeerLost";
    case Code::kTimedOut: return "TimedOut";
    case Code::kAborted: return "Aborted";
    case Code::kResourceExhausted: return "ResourceExhausted";
    case Code::kInternal: return "Internal";
  }
  return "Unknown";
}

Status::Status(Code code, std::string message) {
  if (code != Code::kOk) failure_ = std::make_shared<const Failure>(Failure{code, std::move(message)});
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return ok() ? kEmpty : failure_->message;
}

std::string Status::ToString() const {
  if (ok()) return "Ok";
  return std::string(CodeName(code())) + ": " + message();
}

Status Status::WithCulprit(int rank) const {
  if (ok()) return *this;
  Status copy;
  copy.failure_ = std::make_shared<const Failure>(Failure{code(), message(), rank});
  return copy;
}

Status Status::Annotated(const std::string& what) const {
  if (ok() || message().starts_with(what)) return *this;
  return Status(code(), what + ": " + message()).WithCulprit(culprit());
}

Status InvalidArgument(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }
Status Mismatch(std::string message) { return {Code::kMismatch, std::move(message)}; }
Status Unsupported(std::string message) { return {Code::kUnsupported, std::move(message)}; }
Status PeerLost(int rank, std::string message) {
  return Status(Code::kPeerLost, std::move(message)).WithCulprit(rank);
}
Status TimedOut(std::string message) { return {Code::kTimedOut, std::move(message)}; }
Status Aborted(std::string message) { return {Code::kAborted, std::move(message)}; }
Status ResourceExhausted(std::string message) {
  return {Code::kResourceExhausted, std::move(message)};
}
Status Internal(std::string message) { return {Code::kInternal, std::move(message)}; }

}  // namespace rabit
