#include "abi/option_map.h"

#include <charconv>
#include <string>
#include <system_error>
#include <vector>

#include "abi/options.h"

namespace rabit {

Result<OptionMap> ReadOptions(std::string_view text, OptionMap known) {
  RABIT_ASSIGN_OR_RETURN(const std::vector<OptionLine> lines, SplitOptionLines(text));
  for (const OptionLine& line : lines) {
    const auto found = known.find(line.key);
    if (found == known.end()) {
      std::vector<std::string_view> names;
      for (const auto& [key, value] : known) names.push_back(key);
      return UnknownOption(line.key, names);
    }
    found->second = line.value;
  }
  return known;
}

Result<int64_t> ToNumber(const OptionMap& options, std::string_view key) {
  const std::string_view text = options.at(key);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return InvalidArgument("option " + std::string(key) + " is '" + std::string(text) +
                         "': expected a whole number");
}

}  // namespace rabit
