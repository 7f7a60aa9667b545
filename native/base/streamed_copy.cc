#include "base/streamed_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace rabit {

#if defined(__SSE2__)

void StreamedCopy(std::byte* to, ConstBytes from) {
  constexpr size_t kLineBytes = 64;
  constexpr size_t kVectorBytes = sizeof(__m128i);
  // A line that is not written as a whole costs as much as several that are.
  const size_t to_line = (kLineBytes - reinterpret_cast<uintptr_t>(to) % kLineBytes) % kLineBytes;
  const size_t before = std::min(to_line, from.size());
  std::memcpy(to, from.data(), before);
  size_t at = before;
  for (; from.size() - at >= kLineBytes; at += kLineBytes) {
    for (size_t i = at; i < at + kLineBytes; i += kVectorBytes) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.data() + i)));
    }
  }
  std::memcpy(to + at, from.data() + at, from.size() - at);
  // Streamed writes are ordered weakly: without the fence a reader could see the stamp of a slot
  // before its data.
  _mm_sfence();
}

#else

void StreamedCopy(std::byte* to, ConstBytes from) { std::memcpy(to, from.data(), from.size()); }

#endif

}  // namespace rabit
