#include "control/agreement.h"

namespace rabit {

std::string Describe(const Signature& signature) {
  std::string text(Name(signature.dtype));
  text += '[';
  for (size_t i = 0; i < signature.shape.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(signature.shape[i]);
  }
  return text + ']';
}

Status GaveUp(int rank, const Status& why) {
  const std::string who = "rank " + std::to_string(rank);
  const bool names_itself = why.message().starts_with(who + " ");
  return Status(why.code(), names_itself ? why.message() : who + " gave up: " + why.message())
      .WithCulprit(why.culprit() >= 0 ? why.culprit() : rank);
}

}  // namespace rabit
