// Printable: text out of names, which may hold anything, that cannot steer a terminal or forge a
// line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rabit {

// The first character of a text in UTF-8.
struct Character {
  uint32_t code;
  size_t bytes;
  bool is_whole;  // false: one byte, `code`, that is not UTF-8
};

Character FirstCharacter(std::string_view text);  // `text` is not empty

// True for what a terminal obeys rather than shows: control characters, ends of lines, marks that
// turn the direction of writing, characters without width.  Those that join letters stay: scripts
// and emoji need them. The same table stands in rabit/printable.py.
bool SteersTerminals(uint32_t code);

// `text` with each such character, and each byte that is not UTF-8, as its code: \n, \x1b, \u202e.
std::string Printable(std::string_view text);

}  // namespace rabit
