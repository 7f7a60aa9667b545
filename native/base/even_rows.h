// EvenRows: how rows are shared where nobody says otherwise, so that every rank computes alike.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rabit {

// `rows` among `parts`: as even as can be, the first parts have one row more.
struct EvenRows {
  int64_t rows = 0;
  int64_t parts = 1;

  constexpr int64_t Begin(int64_t part) const {
    return rows / parts * part + std::min(part, rows % parts);
  }
  constexpr int64_t Of(int64_t part) const { return rows / parts + (part < rows % parts ? 1 : 0); }
  constexpr int64_t largest() const { return Of(0); }
  constexpr int64_t smallest() const { return Of(parts - 1); }
};

}  // namespace rabit
