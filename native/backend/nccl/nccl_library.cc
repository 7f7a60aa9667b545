#include "backend/nccl/nccl_library.h"

#include <utility>
#include <vector>

#include "base/dynamic_library.h"

namespace rabit {
namespace {

constexpr const char* kUsualName = "libnccl.so.2";
constexpr const char* kAdvice =
    "the backend nccl needs NVIDIA's NCCL: it comes with torch for CUDA, or install it with "
    "'pip install nvidia-nccl-cu13' (of CUDA 12: nvidia-nccl-cu12)";

// A second copy beside that of torch would have threads and memory of its own.
Result<DynamicLibrary> OpenLibrary(const std::string& library) {
  const std::vector<std::string> names = {library.empty() ? kUsualName : library};
  // torch has loaded its own copy, and its communicators and ours then share one set of threads.
  if (library.empty()) {
    Result<DynamicLibrary> loaded = DynamicLibrary::FindLoaded(names, kAdvice);
    if (loaded.ok()) return loaded;
  }
  return DynamicLibrary::Open(names, kAdvice);
}

std::string VersionText(int32_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::Load(const std::string& library) {
  RABIT_ASSIGN_OR_RETURN(const DynamicLibrary loaded, OpenLibrary(library));
  const auto found = std::make_shared<NcclLibrary>();
#define RABIT_NCCL_FIND(name, ...) RABIT_RETURN_IF_ERROR(loaded.Find(#name, found->name));
  RABIT_NCCL_FUNCTIONS(RABIT_NCCL_FIND)
#undef RABIT_NCCL_FIND
  found->path_ = loaded.name();
  const nccl::Result result = found->ncclGetVersion(&found->version_);
  if (result != nccl::kSuccess) return found->Failed("ncclGetVersion", result, nullptr);
  // The layout of ncclConfig_t, which is declared by hand here, began with this version.
  if (found->version_ < nccl::kVersionMin) {
    return Unsupported("NCCL " + found->version() + " of " + loaded.name() +
                       " is too old: communicators that do not block came with " +
                       VersionText(nccl::kVersionMin) + "; " + kAdvice);
  }
  return std::shared_ptr<const NcclLibrary>(found);
}

std::string NcclLibrary::version() const { return VersionText(version_); }

void NcclLibrary::Write(JsonWriter& json) const {
  json.Member("library", path_).Member("version", version());
}

Status NcclLibrary::Failed(const char* what, nccl::Result result, nccl::Comm comm) const {
  const char* const text = ncclGetErrorString(result);
  // The text is that of the calling thread's last error, so it is read at once.
  const char* const last = ncclGetLastError(comm);
  std::string message = std::string(what) + " of NCCL " + version() +
                        " failed: " + (text == nullptr ? "unknown" : text) + " (" +
                        std::to_string(result) + ")";
  if (last != nullptr && *last != '\0') message += std::string(", ") + last;
  message += "; run it again with NCCL_DEBUG=WARN, which says more";
  switch (result) {
    case nccl::kRemoteError:
    case nccl::kSystemError:
      return PeerLost(-1, message);
    case nccl::kInvalidUsage:
    case nccl::kInvalidArgument:
      return InvalidArgument(message + ". NCCL wants another GPU for every rank of a host");
    default:
      return Internal(message);
  }
}

}  // namespace rabit
