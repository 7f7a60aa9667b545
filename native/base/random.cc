#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/socket.h"

namespace rabit {

Status FillRandom(Bytes out) {
  while (!out.empty()) {
    // It blocks only before the kernel has gathered enough after a boot, when no job runs.
    const ssize_t got = ::getrandom(out.data(), out.size(), 0);
    if (got > 0) {
      out = out.subspan(static_cast<size_t>(got));
    } else if (errno != EINTR) {
      return Internal("the kernel gives no random bytes: " + ErrnoText(errno));
    }
  }
  return {};
}

}  // namespace rabit
