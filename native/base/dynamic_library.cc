#include "base/dynamic_library.h"

#include <dlfcn.h>

namespace rabit {

Result<DynamicLibrary> DynamicLibrary::Open(std::span<const std::string> names,
                                            std::string_view advice) {
  return OpenWith(RTLD_NOW | RTLD_LOCAL, names, advice);
}

Result<DynamicLibrary> DynamicLibrary::FindLoaded(std::span<const std::string> names,
                                                  std::string_view advice) {
  return OpenWith(RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, names, advice);
}

Result<DynamicLibrary> DynamicLibrary::OpenWith(int flags, std::span<const std::string> names,
                                                std::string_view advice) {
  std::string reasons;
  for (const std::string& name : names) {
    // It clears the message of an earlier failure of this thread, which would be reported for this
    // one.
    ::dlerror();
    if (void* handle = ::dlopen(name.c_str(), flags); handle != nullptr) {
      return DynamicLibrary(handle, name);
    }
    const char* reason = ::dlerror();
    if (!reasons.empty()) reasons += "; ";
    reasons.append(name).append(": ").append(reason != nullptr ? reason : "not loaded");
  }
  return Unsupported("no library could be used (" + reasons + "); " + std::string(advice));
}

void* DynamicLibrary::FindSymbol(const char* symbol) const { return ::dlsym(handle_, symbol); }

Status DynamicLibrary::Missing(const char* symbol) const {
  return Unsupported("library " + name_ + " has no function " + symbol +
                     "; install a version that has it");
}

}  // namespace rabit
