#include "engine/refusal.h"

#include <string>

#include "base/kind.h"
#include "engine/request_check.h"

namespace rabit {

bool IsAwaited(const Request& request, const Group& group, int rank) {
  const Signature& signature = request.signature;
  const bool is_sendable = !request.name.empty() && request.name.size() <= kRequestNameBytesMax;
  if (!is_sendable || !group.is_member() || signature.kind == Kind::kJoin) return false;
  if (!TraitsOf(signature.kind).is_pair) return true;
  return signature.root != rank && group.IndexOf(signature.root) >= 0;
}

Status RefusedBy(int rank, const Request& request, const Status& why) {
  const std::string title = std::string(Name(request.signature.kind)) + " '" + request.name + "'";
  const std::string who = "rank " + std::to_string(rank);
  std::string reason = why.message();
  // The check of this request begins with what stands before it here; that of another one, which
  // was submitted in the same call, names that one.
  for (const std::string& begin : {title + " on " + who + ": ", title + ": "}) {
    if (reason.starts_with(begin)) reason.erase(0, begin.size());
  }
  return Status(why.code(), title + ": " + who + " refused it: " + reason).WithCulprit(rank);
}

}  // namespace rabit
