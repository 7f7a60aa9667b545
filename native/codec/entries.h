// Entries of a block: how many, their indices, their values.  What sparse encodings consist of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"

namespace rabit {

constexpr size_t EntriesBytes(size_t count) {
  return sizeof(uint32_t) + count * (sizeof(uint32_t) + sizeof(float));
}

// values[i] of each index.  Returns the bytes written.
size_t WriteEntries(std::span<const uint32_t> indices, const float* values, std::byte* to);

// to[i] += factor * value of entry i, of a block of `count` elements.  Returns the bytes read.
// kInvalidArgument where that is no encoding of them.
Result<size_t> AddEntries(std::string_view spec, ConstBytes from, int64_t count, float factor,
                          float* to);

}  // namespace rabit
