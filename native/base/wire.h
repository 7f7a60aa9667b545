// Little-endian reading and writing of wire formats.  A reader never reads past its end and never
// allocates from a length that it has not checked against what is left.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace rabit {

static_assert(std::endian::native == std::endian::little, "wire formats are copied as they are");

// Fixed positions in a header whose size the caller has checked.
template <class T>
T LoadLittle(const std::byte* from) {
  static_assert(std::is_integral_v<T>);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void StoreLittle(std::byte* to, T value) {
  static_assert(std::is_integral_v<T>);
  std::memcpy(to, &value, sizeof value);
}

inline ConstBytes AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view AsText(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Failures stick: after the first one every read returns zero or empty, so that a parser checks
// once, at its end, with Finish.  Views point into the input.
class WireReader {
 public:
  explicit WireReader(ConstBytes input) : rest_(input) {}

  uint8_t U8() { return Number<uint8_t>(); }
  uint16_t U16() { return Number<uint16_t>(); }
  uint32_t U32() { return Number<uint32_t>(); }
  uint64_t U64() { return Number<uint64_t>(); }
  int32_t I32() { return Number<int32_t>(); }
  int64_t I64() { return Number<int64_t>(); }
  double F64() { return std::bit_cast<double>(U64()); }

  // LEB128, at most 10 bytes; small numbers take one.
  uint64_t Varint();

  ConstBytes Raw(size_t bytes);
  // A 32-bit length and that many bytes; fails if the length is over `bytes_max`.
  ConstBytes Blob(size_t bytes_max);
  std::string_view Text(size_t bytes_max) { return AsText(Blob(bytes_max)); }

  // A 32-bit number of elements, each of which takes at least `element_bytes_min` (> 0) of the
  // rest; 0 after a failure.  Safe to reserve() with.
  size_t Count(size_t element_bytes_min);

  size_t left() const { return rest_.size(); }
  bool ok() const { return !has_failed_; }
  void Fail() {
    has_failed_ = true;
    rest_ = {};
  }
  // OK if everything was read and nothing was missing; `what` names the message.
  Status Finish(std::string_view what) const;

 private:
  template <class T>
  T Number() {
    ConstBytes raw = Raw(sizeof(T));
    return raw.empty() ? T{} : LoadLittle<T>(raw.data());
  }

  ConstBytes rest_;
  bool has_failed_ = false;
};

// Appends to a buffer that the caller may reuse.
class WireWriter {
 public:
  explicit WireWriter(std::vector<std::byte>& out) : out_(out) {}

  void U8(uint8_t value) { Number(value); }
  void U16(uint16_t value) { Number(value); }
  void U32(uint32_t value) { Number(value); }
  void U64(uint64_t value) { Number(value); }
  void I32(int32_t value) { Number(value); }
  void I64(int64_t value) { Number(value); }
  void F64(double value) { Number(std::bit_cast<uint64_t>(value)); }
  void Varint(uint64_t value);

  void Raw(ConstBytes bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void Blob(ConstBytes bytes);  // 32-bit length first; fewer than 4 GiB
  void Text(std::string_view text) { Blob(AsBytes(text)); }
  void Count(size_t elements);  // 32-bit

  size_t size() const { return out_.size(); }

 private:
  template <class T>
  void Number(T value) {
    const size_t at = out_.size();
    out_.resize(at + sizeof value);
    StoreLittle(out_.data() + at, value);
  }

  std::vector<std::byte>& out_;
};

}  // namespace rabit
