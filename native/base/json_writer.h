// JsonWriter: builds a JSON text member by member.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <utility>

namespace rabit {

// Puts the commas where they belong and escapes texts.  That what begins also ends, and that
// members of objects have keys, is up to the caller.  Members may stand without an object around
// them, so that another writer can splice them in.
class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }

  JsonWriter& Key(std::string_view key) {
    Value(key);
    text_ += ':';
    return *this;
  }
  JsonWriter& Value(std::string_view text);
  JsonWriter& Value(const char* text) { return Value(std::string_view(text)); }
  JsonWriter& Value(bool value) { return Append(value ? "true" : "false"); }
  template <class Number>
    requires std::integral<Number> || std::floating_point<Number>
  JsonWriter& Value(Number value) {
    return Append(std::to_string(value));
  }
  template <class T>
  JsonWriter& Member(std::string_view key, const T& value) {
    return Key(key).Value(value);
  }

  // What another writer has written; nothing if that is nothing.
  JsonWriter& Splice(std::string_view json) { return json.empty() ? *this : Append(json); }

  std::string Take() { return std::move(text_); }

 private:
  JsonWriter& Open(char bracket) { return Append(std::string_view(&bracket, 1)); }
  JsonWriter& Close(char bracket) {
    text_ += bracket;
    return *this;
  }
  JsonWriter& Append(std::string_view json) {
    Separate();
    text_ += json;
    return *this;
  }
  void Separate();

  std::string text_;
};

// `text` in quotes, escaped, and with it what a terminal would obey.  Bytes that are not UTF-8 become
// their values: \\x9b.
std::string JsonQuoted(std::string_view text);

}  // namespace rabit
