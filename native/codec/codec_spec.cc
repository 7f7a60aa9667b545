#include "codec/codec_spec.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace rabit {
namespace {

std::string Quoted(const std::vector<std::string_view>& words) {
  std::string quoted;
  for (std::string_view word : words)
    quoted += (quoted.empty() ? "'" : " or '") + std::string(word) + "'";
  return quoted;
}

}  // namespace

Result<CodecSpec> CodecSpec::Parse(std::string_view text) {
  constexpr size_t kBytesMax = 200;
  CodecSpec spec;
  spec.text_ = std::string(text);
  if (text.empty() || text.size() > kBytesMax) {
    return InvalidArgument("a codec's specification has " + std::to_string(text.size()) +
                           " bytes: 1 to " + std::to_string(kBytesMax) + " are expected, such as " +
                           "'levels:bits=4,block=512'.");
  }
  const size_t colon = text.find(':');
  spec.name_ = std::string(text.substr(0, colon));
  spec.canonical_ = spec.name_;
  std::string_view rest = colon == text.npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t equals = item.find('=');
    if (equals == item.npos || equals == 0) {
      return InvalidArgument("codec '" + spec.text_ + "': '" + std::string(item) +
                             "' is not key=value. Write it like 'levels:bits=4,block=512'.");
    }
    spec.given_.emplace_back(item.substr(0, equals), item.substr(equals + 1));
  }
  return spec;
}

std::string CodecSpec::Take(std::string_view key) {
  known_ += (known_.empty() ? "" : ", ") + std::string(key);
  const auto found = std::find_if(given_.begin(), given_.end(),
                                  [key](const auto& each) { return each.first == key; });
  if (found == given_.end()) return {};
  std::string value = std::move(found->second);
  given_.erase(found);
  return value;
}

void CodecSpec::Add(std::string_view key, std::string_view value) {
  const bool is_first = canonical_.size() == name_.size();
  canonical_ += std::string(is_first ? ":" : ",") + std::string(key) + "=" + std::string(value);
}

void CodecSpec::Reject(std::string_view key, std::string_view value, const std::string& expected) {
  if (!status_.ok()) return;
  status_ = InvalidArgument("codec '" + text_ + "': " + std::string(key) + " is '" +
                            std::string(value) + "'; it is " + expected + ". Correct it.");
}

int64_t CodecSpec::TakeInteger(std::string_view key, int64_t fallback, int64_t least,
                               int64_t largest, int64_t multiple_of) {
  const std::string text = Take(key);
  int64_t value = fallback;
  if (!text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (!is_number || value < least || value > largest || value % multiple_of != 0) {
      Reject(key, text,
             "an integer from " + std::to_string(least) + " to " + std::to_string(largest) +
                 (multiple_of == 1 ? "" : ", a multiple of " + std::to_string(multiple_of)));
      value = fallback;
    }
  }
  Add(key, std::to_string(value));
  return value;
}

double CodecSpec::TakeFraction(std::string_view key, double fallback) {
  const std::string text = Take(key);
  double value = fallback;
  if (!text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (!is_number || !(value > 0.0 && value <= 1.0)) {
      Reject(key, text, "a number above 0 and up to 1");
      value = fallback;
    }
  }
  char shown[32];
  std::snprintf(shown, sizeof shown, "%.9g", value);
  Add(key, shown);
  return value;
}

size_t CodecSpec::TakeWord(std::string_view key, std::vector<std::string_view> words) {
  return PlaceOf(key, Take(key), words);
}

size_t CodecSpec::TakeWordOrTable(std::string_view key, std::vector<std::string_view> words,
                                  size_t count, std::vector<float>* table) {
  constexpr size_t kDigits = 4;
  const std::string text = Take(key);
  if (text.empty() || std::find(words.begin(), words.end(), text) != words.end()) {
    return PlaceOf(key, text, words);
  }
  std::vector<uint32_t> parts;
  for (size_t first = 0; first < text.size(); first += kDigits) {
    uint32_t part = 0;
    const char* const end = text.data() + std::min(first + kDigits, text.size());
    const auto [last, error] = std::from_chars(text.data() + first, end, part, 16);
    if (error != std::errc() || last != end) break;
    parts.push_back(part);
  }
  if (text.size() != kDigits * (count - 2) || parts.size() != count - 2 ||
      !std::is_sorted(parts.begin(), parts.end())) {
    Reject(key, text,
           Quoted(words) + ", or " + std::to_string(count - 2) +
               " numbers of four hexadecimal digits, none below the one before");
    return 0;
  }
  *table = {0.0f};
  for (const uint32_t part : parts) table->push_back(static_cast<float>(part) * 0x1p-16f);
  table->push_back(1.0f);
  Add(key, text);
  return words.size();
}

size_t CodecSpec::PlaceOf(std::string_view key, const std::string& text,
                          const std::vector<std::string_view>& words) {
  size_t place = 0;
  if (!text.empty()) {
    place = static_cast<size_t>(std::find(words.begin(), words.end(), text) - words.begin());
    if (place == words.size()) {
      Reject(key, text, Quoted(words));
      place = 0;
    }
  }
  Add(key, words[place]);
  return place;
}

Status CodecSpec::Finish() {
  if (!status_.ok() || given_.empty()) return status_;
  return InvalidArgument("codec '" + text_ + "': '" + given_.front().first +
                         "' is no parameter of '" + name_ + "', or is given twice. " +
                         (known_.empty() ? "It has none." : "It has " + known_ + "."));
}

}  // namespace rabit
