#include "base/json_writer.h"

#include <cstdio>

#include "base/printable.h"

namespace rabit {
namespace {

void AppendUnit(uint32_t unit, std::string& to) {
  char escaped[8];
  std::snprintf(escaped, sizeof escaped, "\\u%04x", unit & 0xffff);
  to += escaped;
}

void AppendCharacter(std::string_view bytes, Character character, std::string& to) {
  if (!character.is_whole) {
    to += '\\' + Printable(bytes);  // a text that says which byte it was: JSON holds none
  } else if (character.code == '"' || character.code == '\\') {
    to += '\\';
    to += bytes;
  } else if (!SteersTerminals(character.code)) {
    to += bytes;
  } else if (character.code <= 0xffff) {
    AppendUnit(character.code, to);
  } else {
    AppendUnit(0xd7c0 + (character.code >> 10), to);
    AppendUnit(0xdc00 + (character.code & 0x3ff), to);
  }
}

void AppendQuoted(std::string_view text, std::string& to) {
  to += '"';
  while (!text.empty()) {
    const Character character = FirstCharacter(text);
    AppendCharacter(text.substr(0, character.bytes), character, to);
    text.remove_prefix(character.bytes);
  }
  to += '"';
}

}  // namespace

JsonWriter& JsonWriter::Value(std::string_view text) {
  Separate();
  AppendQuoted(text, text_);
  return *this;
}

// A text ends with its quote, so a bracket or a colon at the end is one of the structure.
void JsonWriter::Separate() {
  if (text_.empty()) return;
  const char last = text_.back();
  if (last != '{' && last != '[' && last != ':') text_ += ',';
}

std::string JsonQuoted(std::string_view text) {
  std::string quoted;
  AppendQuoted(text, quoted);
  return quoted;
}

}  // namespace rabit
