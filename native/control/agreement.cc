#include "control/agreement.h"

#include <algorithm>

namespace rabit {

std::vector<int> AxesOf(int32_t axis_order) {
  std::vector<int> axes;
  for (auto left = static_cast<uint32_t>(axis_order); axes.size() < 8; left >>= 4) {
    axes.push_back(static_cast<int>(left & 15));
  }
  axes.resize(static_cast<size_t>(std::min(*std::max_element(axes.begin(), axes.end()), 7)) + 1);
  return axes;
}

std::string Describe(const Signature& signature) {
  std::string text(Name(signature.dtype));
  text += '[';
  for (size_t i = 0; i < signature.shape.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(signature.shape[i]);
  }
  text += ']';
  if (signature.axis_order == 0) return text;
  text += " with its axes in the order";
  char separator = ' ';
  for (const int axis : AxesOf(signature.axis_order)) {
    text += separator + std::to_string(axis);
    separator = ',';
  }
  return text + " in memory";
}

Status GaveUp(int rank, const Status& why) {
  const std::string who = "rank " + std::to_string(rank);
  const bool names_itself = why.message().starts_with(who + " ");
  return Status(why.code(), names_itself ? why.message() : who + " gave up: " + why.message())
      .WithCulprit(why.culprit() >= 0 ? why.culprit() : rank);
}

}  // namespace rabit
