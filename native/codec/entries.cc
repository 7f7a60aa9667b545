#include "codec/entries.h"

#include <cstring>
#include <string>

#include "codec/block_coder.h"

namespace rabit {

size_t WriteEntries(std::span<const uint32_t> indices, const float* values, std::byte* to) {
  const auto kept = static_cast<uint32_t>(indices.size());
  std::memcpy(to, &kept, sizeof kept);
  std::byte* const to_indices = to + sizeof kept;
  std::byte* const to_values = to_indices + indices.size_bytes();
  if (kept > 0) std::memcpy(to_indices, indices.data(), indices.size_bytes());
  for (size_t i = 0; i < indices.size(); ++i) {
    std::memcpy(to_values + i * sizeof(float), values + indices[i], sizeof(float));
  }
  return EntriesBytes(indices.size());
}

Result<size_t> AddEntries(std::string_view spec, ConstBytes from, int64_t count, float factor,
                          float* to) {
  uint32_t kept = 0;
  RABIT_RETURN_IF_ERROR(CheckEncodedBytes(spec, from, sizeof kept, count));
  std::memcpy(&kept, from.data(), sizeof kept);
  const size_t bytes = EntriesBytes(kept);
  RABIT_RETURN_IF_ERROR(CheckEncodedBytes(spec, from, bytes, count));
  const std::byte* const indices = from.data() + sizeof kept;
  const std::byte* const values = indices + static_cast<size_t>(kept) * sizeof(uint32_t);
  for (size_t i = 0; i < kept; ++i) {
    uint32_t index = 0;
    float value = 0;
    std::memcpy(&index, indices + i * sizeof index, sizeof index);
    std::memcpy(&value, values + i * sizeof value, sizeof value);
    if (index >= static_cast<uint64_t>(count)) {
      return InvalidArgument("codec '" + std::string(spec) + "': an encoding names element " +
                             std::to_string(index) + " of a block of " + std::to_string(count) +
                             ". Report this.");
    }
    to[index] += factor * value;
  }
  return bytes;
}

}  // namespace rabit
