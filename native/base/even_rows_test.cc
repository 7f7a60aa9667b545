#include "base/even_rows.h"

#include "testing/test.h"

namespace rabit {
namespace {

TEST(EvenRows, parts_follow_each_other_and_low_ones_are_a_row_longer) {
  for (int64_t parts = 1; parts < 7; ++parts) {
    for (int64_t rows = 0; rows < 30; ++rows) {
      const EvenRows even{rows, parts};
      int64_t next = 0;
      for (int64_t part = 0; part < parts; ++part) {
        EXPECT_EQ(even.Begin(part), next);
        EXPECT_GE(even.Of(part), even.smallest());
        EXPECT_LE(even.Of(part), even.smallest() + 1);
        EXPECT_TRUE(part == 0 || even.Of(part) <= even.Of(part - 1));
        next += even.Of(part);
      }
      EXPECT_EQ(next, rows);
      EXPECT_EQ(even.Of(0), even.largest());
    }
  }
}

}  // namespace
}  // namespace rabit
