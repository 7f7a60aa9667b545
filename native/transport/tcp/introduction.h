// Introduction: who sits at the other end of a control connection, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace rabit {

struct Introduction {
  std::string host;
  int32_t pid = 0;

  static Introduction OfThisProcess();
};

std::vector<std::byte> Encode(const Introduction& introduction);
Result<Introduction> DecodeIntroduction(ConstBytes payload);

}  // namespace rabit
