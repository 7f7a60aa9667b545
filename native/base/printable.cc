#include "base/printable.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace rabit {
namespace {

struct Range {
  uint32_t first;
  uint32_t last;
};

constexpr std::array<Range, 11> kSteering = {{{0x0000, 0x001f},
                                              {0x007f, 0x009f},
                                              {0x061c, 0x061c},
                                              {0x200b, 0x200b},
                                              {0x200e, 0x200f},
                                              {0x2028, 0x202e},
                                              {0x2060, 0x206f},
                                              {0xd800, 0xdfff},
                                              {0xfeff, 0xfeff},
                                              {0xfff9, 0xfffb},
                                              {0xe0000, 0xe007f}}};

// How many bytes a character has that begins with `lead`, and what else the lead holds; 0: none
// begins so.
size_t LengthOf(unsigned char lead, uint32_t* code) {
  if (lead < 0x80) return *code = lead, 1;
  if (lead >= 0xc2 && lead < 0xe0) return *code = lead & 0x1f, 2;
  if (lead >= 0xe0 && lead < 0xf0) return *code = lead & 0x0f, 3;
  if (lead >= 0xf0 && lead < 0xf5) return *code = lead & 0x07, 4;
  return 0;
}

void AppendEscaped(Character character, std::string& to) {
  if (character.is_whole && character.code == '\n') {
    to += "\\n";
  } else if (character.is_whole && character.code == '\r') {
    to += "\\r";
  } else if (character.is_whole && character.code == '\t') {
    to += "\\t";
  } else {
    char escaped[16];
    const char* format = "\\U%08x";
    if (character.code <= 0xffff) format = "\\u%04x";
    if (character.code <= 0xff) format = "\\x%02x";
    std::snprintf(escaped, sizeof escaped, format, character.code);
    to += escaped;
  }
}

}  // namespace

Character FirstCharacter(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const Character broken = {lead, 1, false};
  uint32_t code = 0;
  const size_t bytes = LengthOf(lead, &code);
  if (bytes == 0 || bytes > text.size()) return broken;
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return broken;
    code = (code << 6) | (next & 0x3f);
  }
  constexpr std::array<uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kSmallest[bytes] || code > 0x10ffff || is_surrogate) return broken;
  return {code, bytes, true};
}

bool SteersTerminals(uint32_t code) {
  return std::any_of(kSteering.begin(), kSteering.end(),
                     [code](Range range) { return code >= range.first && code <= range.last; });
}

std::string Printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const Character character = FirstCharacter(text);
    if (!character.is_whole || SteersTerminals(character.code)) {
      AppendEscaped(character, shown);
    } else {
      shown += text.substr(0, character.bytes);
    }
    text.remove_prefix(character.bytes);
  }
  return shown;
}

}  // namespace rabit
