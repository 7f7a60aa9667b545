// RABIT_CHECK: a programmer error stops the process with the condition and the values.
#pragma once

#include <string_view>

namespace rabit {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

#define RABIT_CHECK(condition, message)                                            \
  do {                                                                             \
    if (!(condition)) ::rabit::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)

}  // namespace rabit
