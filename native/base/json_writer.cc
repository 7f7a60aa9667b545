#include "base/json_writer.h"

namespace rabit {
namespace {

void AppendQuoted(std::string_view text, std::string& to) {
  static constexpr char kHex[] = "0123456789abcdef";
  to += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      to += '\\';
      to += c;
    } else if (byte < 0x20) {
      to += "\\u00";
      to += kHex[byte >> 4];
      to += kHex[byte & 15];
    } else {
      to += c;
    }
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
