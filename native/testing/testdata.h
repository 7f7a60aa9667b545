// Frozen bytes under native/*/testdata.
#pragma once

#include <filesystem>
#include <string_view>

namespace rabit::testing {

// `relative`: from native/, such as "control/testdata/messages_v1.txt".  The build passes the folder:
// __FILE__ may be relative to a build folder that is gone.
inline std::filesystem::path Testdata(std::string_view relative) {
  return std::filesystem::path(RABIT_NATIVE_FOLDER) / relative;
}

}  // namespace rabit::testing
