#include "base/numbered_name.h"

#include "testing/test.h"

namespace rabit {
namespace {

TEST(NumberedName, ends_in_the_mark_and_a_number) {
  EXPECT_TRUE(IsNumbered("allreduce.noname.1"));
  EXPECT_TRUE(IsNumbered("barrier.set2.noname.18446744073709551616"));
  for (const char* other : {"", "7", "x", "x.7", "x.noname", "x.noname.", "x.noname.1.weight",
                            "noname.1", "x.noname1", "x.noname.-1"})
    EXPECT_FALSE(IsNumbered(other)) << other;
}

}  // namespace
}  // namespace rabit
