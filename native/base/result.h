// Result<T>: a T or the Status that says why there is none.
#pragma once

#include <utility>
#include <variant>

#include "base/check.h"
#include "base/status.h"

namespace rabit {

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit
  Result(Status status) : content_(std::in_place_index<1>, std::move(status)) {  // NOLINT: implicit
    RABIT_CHECK(!std::get<1>(content_).ok(), "a Result was built from an OK status");
  }

  bool ok() const { return content_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(content_); }

  // Only if ok().
  T& value() & { return std::get<0>(content_); }
  const T& value() const& { return std::get<0>(content_); }
  T&& value() && { return std::get<0>(std::move(content_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> content_;
};

// RABIT_ASSIGN_OR_RETURN(auto x, F()): x = the value, or return the status.
#define RABIT_CONCAT_INNER(a, b) a##b
#define RABIT_CONCAT(a, b) RABIT_CONCAT_INNER(a, b)
#define RABIT_ASSIGN_OR_RETURN(declaration, expression) \
  RABIT_ASSIGN_OR_RETURN_NAMED(RABIT_CONCAT(rabit_result_, __LINE__), declaration, expression)
#define RABIT_ASSIGN_OR_RETURN_NAMED(result, declaration, expression) \
  auto result = (expression);                                         \
  if (!result.ok()) return result.status();                           \
  declaration = std::move(result).value()

}  // namespace rabit
