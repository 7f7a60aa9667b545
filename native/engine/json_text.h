// JsonQuoted: text as a JSON string.
#pragma once

#include <string>
#include <string_view>

namespace rabit {

// With the quotes.  Bytes that are not UTF-8 are the caller's business and pass unchanged.
std::string JsonQuoted(std::string_view text);

}  // namespace rabit
