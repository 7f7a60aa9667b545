// Options of the small objects of the C ABI: lines key=value.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

#include "base/result.h"

namespace rabit {

using OptionMap = std::map<std::string_view, std::string_view>;

// `known`: every key with its default.  The views point into `text` and `known`.
Result<OptionMap> ReadOptions(std::string_view text, OptionMap known);
Result<int64_t> ToNumber(const OptionMap& options, std::string_view key);

}  // namespace rabit
