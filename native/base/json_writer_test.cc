#include "base/json_writer.h"

#include "testing/test.h"

namespace rabit {
namespace {

TEST(JsonWriter, puts_commas_between_members_and_elements_only) {
  JsonWriter json;
  json.BeginObject().Member("a", 1).Key("b").BeginArray();
  json.Value("x").Value(true).BeginObject().EndObject().BeginArray().EndArray();
  json.EndArray().Member("c", 0.5).EndObject();

  EXPECT_EQ(json.Take(), R"({"a":1,"b":["x",true,{},[]],"c":0.500000})");
}

TEST(JsonWriter, escapes_keys_and_texts) {
  JsonWriter json;
  json.BeginObject().Member("a\"b", std::string_view("\\\n\x01{")).Member("c", "[").EndObject();

  EXPECT_EQ(json.Take(), R"({"a\"b":"\\\u000a\u0001{","c":"["})");
}

TEST(JsonWriter, escapes_what_a_terminal_would_obey_and_bytes_that_are_not_utf_8) {
  EXPECT_EQ(JsonQuoted("\xc2\x9b"
                       "31m\x7f\xe2\x80\xae Größe"),
            "\"\\u009b31m\\u007f\\u202e Größe\"");
  EXPECT_EQ(JsonQuoted("\xf3\xa0\x80\x81"), "\"\\udb40\\udc01\"");
  EXPECT_EQ(JsonQuoted("a\x9bz"), "\"a\\\\x9bz\"");
}

TEST(JsonWriter, splices_what_another_writer_has_written) {
  JsonWriter members;
  members.Member("x", 1).Member("y", -2);
  JsonWriter json;
  json.BeginObject().Splice(members.Take()).Splice("").Member("z", uint64_t{3}).EndObject();

  EXPECT_EQ(json.Take(), R"({"x":1,"y":-2,"z":3})");
}

}  // namespace
}  // namespace rabit
