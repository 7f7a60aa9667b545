// Status: a code and a message.  Operating errors travel up as Status; programmer errors are
// RABIT_CHECK (base/check.h) and stop the process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace rabit {

// Values are part of the C ABI (rabit_code); never reuse one.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = 1,    // the caller passed something that cannot work
  kMismatch = 2,           // ranks disagree about one tensor
  kUnsupported = 3,        // no implementation for this combination
  kPeerLost = 4,           // a rank died, hung or became unreachable
  kTimedOut = 5,           // a deadline passed
  kAborted = 6,            // the engine stopped before the operation finished
  kResourceExhausted = 7,  // memory, descriptors, queue slots
  kInternal = 8,           // a defect of this library
};

std::string_view CodeName(Code code);

// OK carries no message and costs no allocation.  Copyable; thread-compatible.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message);

  bool ok() const { return failure_ == nullptr; }
  Code code() const { return ok() ? Code::kOk : failure_->code; }
  const std::string& message() const;
  std::string ToString() const;  // "PeerLost: rank 3 …"; "Ok"

  // The rank that caused the failure, or -1: errors must name ranks, also to programs.
  int culprit() const { return ok() ? -1 : failure_->culprit; }
  Status WithCulprit(int rank) const;
  // Names what failed: "<what>: <message>", unless the message begins with it.  OK stays OK.
  Status Annotated(const std::string& what) const;

 private:
  struct Failure {
    Code code;
    std::string message;
    int culprit = -1;
  };
  std::shared_ptr<const Failure> failure_;
};

Status InvalidArgument(std::string message);
Status Mismatch(std::string message);
Status Unsupported(std::string message);
Status PeerLost(int rank, std::string message);
Status TimedOut(std::string message);
Status Aborted(std::string message);
Status ResourceExhausted(std::string message);
Status Internal(std::string message);

#define RABIT_RETURN_IF_ERROR(expression)                   \
  do {                                                      \
    if (::rabit::Status rabit_status_ = (expression); !rabit_status_.ok()) return rabit_status_; \
  } while (false)

}  // namespace rabit
