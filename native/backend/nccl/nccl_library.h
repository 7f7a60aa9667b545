// NcclLibrary: NVIDIA's collectives for GPUs, looked up at run time.
#pragma once

#include <memory>
#include <string>

#include "backend/nccl/nccl_functions.h"
#include "base/json_writer.h"
#include "base/result.h"
#include "base/status.h"

namespace rabit {

// Constant.
class NcclLibrary {
 public:
  // Loads `library`; if it is empty, what the process has loaded already, or what the loader finds.
  // kUnsupported says what is missing, and what to install.
  static Result<std::shared_ptr<const NcclLibrary>> Load(const std::string& library = {});

  // The symbols, by their own names.
#define RABIT_NCCL_MEMBER(name, ...) nccl::name##_type* name = nullptr;
  RABIT_NCCL_FUNCTIONS(RABIT_NCCL_MEMBER)
#undef RABIT_NCCL_MEMBER

  const std::string& path() const { return path_; }
  std::string version() const;  // "2.27.3"
  // Members of an object: what was loaded, and from where.
  void Write(JsonWriter& json) const;
  // What `result` of the call `what` means; `comm` may be null.
  Status Failed(const char* what, nccl::Result result, nccl::Comm comm) const;

 private:
  std::string path_;
  int32_t version_ = 0;
};

}  // namespace rabit
