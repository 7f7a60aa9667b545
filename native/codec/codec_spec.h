// CodecSpec: "levels:bits=4,block=512", read parameter by parameter.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/status.h"

namespace rabit {

// A maker takes its parameters in the order in which the canonical text shall have them, and then
// calls Finish.  The first mistake is kept and reported there.
class CodecSpec {
 public:
  static Result<CodecSpec> Parse(std::string_view text);

  const std::string& name() const { return name_; }
  int64_t TakeInteger(std::string_view key, int64_t fallback, int64_t least, int64_t largest,
                      int64_t multiple_of = 1);
  double TakeFraction(std::string_view key, double fallback);                  // above 0, up to 1
  size_t TakeWord(std::string_view key, std::vector<std::string_view> words);  // the first: default
  // As TakeWord; or a table of `count` levels from 0 to 1: those between as four hexadecimal digits
  // each, in parts of 65536, none below the one before.  Returns words.size() then.
  size_t TakeWordOrTable(std::string_view key, std::vector<std::string_view> words, size_t count,
                         std::vector<float>* table);
  // An error if a value was wrong or a parameter was not taken.
  Status Finish();
  // With every parameter.  Only after Finish.
  const std::string& canonical() const { return canonical_; }

 private:
  std::string Take(std::string_view key);  // empty: not given
  size_t PlaceOf(std::string_view key, const std::string& text,
                 const std::vector<std::string_view>& words);
  void Add(std::string_view key, std::string_view value);
  void Reject(std::string_view key, std::string_view value, const std::string& expected);

  std::string text_;
  std::string name_;
  std::vector<std::pair<std::string, std::string>> given_;
  std::string canonical_;
  std::string known_;
  Status status_;
};

}  // namespace rabit
