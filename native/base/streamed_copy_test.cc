#include "base/streamed_copy.h"

#include <algorithm>
#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

TEST(StreamedCopy, copies_any_length_from_and_to_any_address) {
  std::vector<std::byte> from(1000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (size_t length : {0, 1, 15, 63, 64, 65, 128, 200, 640}) {
    for (size_t source : {0, 1, 9, 64}) {
      for (size_t target = 0; target < 130; target += 3) {
        std::vector<std::byte> to(1000);
        const ConstBytes copied = ConstBytes(from).subspan(source, length);

        StreamedCopy(to.data() + target, copied);

        std::vector<std::byte> wanted(1000);
        std::copy(copied.begin(), copied.end(), wanted.begin() + static_cast<ptrdiff_t>(target));
        ASSERT_TRUE(to == wanted);
      }
    }
  }
}

}  // namespace
}  // namespace rabit
