// The kernel lists what it lets programs use: its list and ours are the same.
#include "base/cpu_features.h"

#include <fstream>
#include <initializer_list>
#include <set>
#include <sstream>
#include <string>

#include "testing/test.h"

namespace rabit {
namespace {

#if defined(__x86_64__)
std::set<std::string> FlagsOfTheKernel() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> flags;
    for (std::string word; words >> word;) flags.insert(word);
    return flags;
  }
  return {};
}

bool HasAll(const std::set<std::string>& flags, std::initializer_list<const char*> wanted) {
  for (const char* flag : wanted) {
    if (!flags.contains(flag)) return false;
  }
  return true;
}

TEST(CpuFeatures, are_those_that_the_kernel_lists) {
  const std::set<std::string> flags = FlagsOfTheKernel();
  ASSERT_TRUE(!flags.empty());
  const bool avx2 = HasAll(flags, {"avx2", "fma", "f16c"});
  const bool sse42 = HasAll(flags, {"sse4_2", "pclmulqdq"});

  EXPECT_EQ(CpuHasAvx2(), avx2);
  EXPECT_EQ(CpuHasAvx512(), avx2 && HasAll(flags, {"avx512f", "avx512bw", "avx512dq", "avx512vl"}));
  EXPECT_EQ(CpuHasSse42(), sse42);
  EXPECT_EQ(CpuHasVectorPclmul(), sse42 && HasAll(flags, {"avx512f", "avx512vl", "vpclmulqdq"}));
}
#endif

}  // namespace
}  // namespace rabit
