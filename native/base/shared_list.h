// SharedList: an immutable list that copies share.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace rabit {

// Whoever is given the same list again sees it by one comparison, and may use again what it has
// derived from the elements.
template <class T>
class SharedList {
 public:
  SharedList() = default;
  SharedList(std::vector<T> elements)  // NOLINT: a vector is a list
      : elements_(std::make_shared<const std::vector<T>>(std::move(elements))) {}
  SharedList(std::initializer_list<T> elements) : SharedList(std::vector<T>(elements)) {}

  size_t size() const { return elements_ == nullptr ? 0 : elements_->size(); }
  bool empty() const { return size() == 0; }
  const T& operator[](size_t index) const { return (*elements_)[index]; }
  const T* begin() const { return elements_ == nullptr ? nullptr : elements_->data(); }
  const T* end() const { return begin() + size(); }

  // An element that keeps the whole list alive.
  std::shared_ptr<const T> Share(size_t index) const { return {elements_, &(*elements_)[index]}; }
  // The same elements in the same memory; lists that are merely equal are not.
  bool IsSameAs(const SharedList& other) const { return elements_ == other.elements_; }

 private:
  std::shared_ptr<const std::vector<T>> elements_;
};

}  // namespace rabit
