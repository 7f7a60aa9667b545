#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/socket.h"

namespace rabit {

Status FillRandom(Bytes out) {
  while (!out.empty()) {
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
