#include "base/wire.h"

#include <limits>

#include "base/check.h"

namespace rabit {

ConstBytes WireReader::Raw(size_t bytes) {
  if (bytes > rest_.size()) {
    Fail();
    return {};
  }
  ConstBytes raw = rest_.first(bytes);
  rest_ = rest_.subspan(bytes);
  return raw;
}

uint64_t WireReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    const uint64_t byte = U8();
    if (!ok()) return 0;
    const uint64_t bits = byte & 0x7f;
    if (shift == 63 && bits > 1) break;  // would not fit 64 bits
    value |= bits << shift;
    if ((byte & 0x80) == 0) return value;
  }
  Fail();
  return 0;
}

ConstBytes WireReader::Blob(size_t bytes_max) {
  const size_t bytes = U32();
  if (bytes > bytes_max) {
    Fail();
    return {};
  }
  return Raw(bytes);
}

size_t WireReader::Count(size_t element_bytes_min) {
  RABIT_CHECK(element_bytes_min > 0, "an element takes at least one byte");
  const size_t elements = U32();
  // The count decides how much is allocated, so it is compared with what the message can hold
  // before anything is.
  if (elements > rest_.size() / element_bytes_min) {
    Fail();
    return 0;
  }
  return elements;
}

Status WireReader::Finish(std::string_view what) const {
  // A reader goes on after its first failure and gives zeros, so that decoders need one look, here.
  if (has_failed_) {
    return Internal(std::string(what) + " is malformed: it ends early or holds a length that " +
                    "does not fit; run the same version of rabit on every rank");
  }
  if (!rest_.empty()) {
    return Internal(std::string(what) + " is malformed: " + std::to_string(rest_.size()) +
                    " bytes are left over; run the same version of rabit on every rank");
  }
  return {};
}

void WireWriter::Varint(uint64_t value) {
  while (value >= 0x80) {
    U8(static_cast<uint8_t>(value | 0x80));
    value >>= 7;
  }
  U8(static_cast<uint8_t>(value));
}

void WireWriter::Blob(ConstBytes bytes) {
  Count(bytes.size());
  Raw(bytes);
}

void WireWriter::Count(size_t elements) {
  RABIT_CHECK(elements <= std::numeric_limits<uint32_t>::max(), "lengths are 32-bit on the wire");
  U32(static_cast<uint32_t>(elements));
}

}  // namespace rabit
