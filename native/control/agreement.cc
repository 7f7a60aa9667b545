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

}  // namespace rabit
