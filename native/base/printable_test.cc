#include "base/printable.h"

#include "testing/test.h"

namespace rabit {
namespace {

TEST(Printable, shows_what_a_terminal_would_obey_as_its_code) {
  EXPECT_EQ(Printable("w\x1b]0;x\x07\x1b[2J"), "w\\x1b]0;x\\x07\\x1b[2J");
  EXPECT_EQ(Printable("a\nb\r\tc\x7f"), "a\\nb\\r\\tc\\x7f");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m"),
            "\\x9b31m");  // U+009B, an ESC [ of its own
  EXPECT_EQ(Printable("\xe2\x80\xae"
                      "txt\xe2\x80\xa8"),
            "\\u202etxt\\u2028");
  EXPECT_EQ(Printable("\xf3\xa0\x80\x81"), "\\U000e0001");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
}

TEST(Printable, leaves_text_of_any_script_as_it_is) {
  const std::string text = "conv1.weight 'Größe' 層.重み وزن 👩\xe2\x80\x8d💻 a\\x1b";

  EXPECT_EQ(Printable(text), text);
  EXPECT_EQ(Printable(""), "");
}

TEST(Printable, shows_bytes_that_are_not_utf_8_as_their_values) {
  EXPECT_EQ(Printable("a\x9bz"), "a\\x9bz");
  EXPECT_EQ(Printable("\xe2\x80"), "\\xe2\\x80");                    // ends too early
  EXPECT_EQ(Printable("\xc0\x8a"), "\\xc0\\x8a");                    // a newline in two bytes
  EXPECT_EQ(Printable("\xe0\x80\x8a"), "\\xe0\\x80\\x8a");           // and in three
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // half of a pair
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond the last
}

TEST(Printable, of_its_own_result_is_the_same) {
  const std::string once = Printable("a\x1b\n\xff\xe2\x80\xae");

  EXPECT_EQ(Printable(once), once);
}

}  // namespace
}  // namespace rabit
