#include "base/check.h"

#include <cstdio>
#include <cstdlib>

#include "base/printable.h"

namespace rabit {

void CheckFailed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "rabit: check failed at %s:%d: %s: %s\n", file, line, condition,
               Printable(message).c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace rabit
