#include "transport/tcp/introduction.h"

#include <unistd.h>

#include "base/wire.h"

namespace rabit {
namespace {

constexpr size_t kHostBytesMax = 255;

}  // namespace

Introduction Introduction::OfThisProcess() {
  char name[kHostBytesMax + 1] = "";
  if (::gethostname(name, kHostBytesMax) != 0) name[0] = '\0';
  return {name[0] == '\0' ? "unknown" : name, static_cast<int32_t>(::getpid())};
}

std::vector<std::byte> Encode(const Introduction& introduction) {
  std::vector<std::byte> payload;
  WireWriter writer(payload);
  writer.I32(introduction.pid);
  writer.Text(std::string_view(introduction.host).substr(0, kHostBytesMax));
  return payload;
}

Result<Introduction> DecodeIntroduction(ConstBytes payload) {
  WireReader reader(payload);
  Introduction introduction;
  introduction.pid = reader.I32();
  introduction.host = reader.Text(kHostBytesMax);
  if (!reader.Finish("").ok()) {
    return Internal(
        "sent a malformed introduction; run the same version of rabit on every "
        "host");
  }
  return introduction;
}

}  // namespace rabit
