#include "codec/codec_table.h"

#include <string>

#include "testing/codec_conformance.h"
#include "testing/test.h"

namespace rabit {
namespace {

[[maybe_unused]] const bool all_rows_are_tested = [] {
  for (const CodecRow& row : CodecTable()) {
    testing::RegisterCodecSuite("Codec_" + std::string(row.name), std::string(row.example));
  }
  return true;
}();

// Parameters by which a codec does something else.
RABIT_CODEC_SUITE(L2LevelsCodec, "levels:bits=6,block=64,norm=l2");
RABIT_CODEC_SUITE(ExponentialLevelsCodec, "levels:bits=5,block=256,levels=exponential");
RABIT_CODEC_SUITE(TableLevelsCodec, "levels:bits=3,block=64,levels=2a005500");
RABIT_CODEC_SUITE(TernaryCodec, "levels:bits=2,block=64,phases=1");
RABIT_CODEC_SUITE(SignInTwoPhasesCodec, "sign:block=64,phases=2");
RABIT_CODEC_SUITE(SampledTopKCodec, "topk:ratio=0.05,block=16384");
RABIT_CODEC_SUITE(ExactTopKCodec, "topk:ratio=0.05,block=512,count=exact");

TEST(CodecTable, a_specification_is_completed_with_the_defaults) {
  for (const CodecRow& row : CodecTable()) {
    auto codec = MakeCodec(row.name);
    ASSERT_OK(codec);
    const std::string spec((*codec)->spec());
    EXPECT_TRUE(spec == row.name || spec.starts_with(std::string(row.name) + ":")) << spec;
    auto again = MakeCodec(spec);
    ASSERT_OK(again);
    EXPECT_EQ((*again)->spec(), spec);
  }
  EXPECT_EQ((*MakeCodec("levels:block=1024"))->spec(),
            "levels:bits=4,block=1024,levels=uniform,norm=max,phases=2");
  EXPECT_EQ((*MakeCodec("topk:count=exact,ratio=0.001"))->spec(),
            "topk:ratio=0.001,block=1048576,count=exact");
}

TEST(CodecTable, mistakes_in_a_specification_are_named) {
  const auto message = [](const char* spec) { return MakeCodec(spec).status().message(); };
  EXPECT_TRUE(
      message("fp7").starts_with("no codec is called 'fp7'. Choose one of 'fp16', 'bf16', "));
  for (const CodecRow& row : CodecTable()) {
    EXPECT_TRUE(testing::Has(message("fp7"), "'" + std::string(row.name) + "'")) << message("fp7");
  }
  EXPECT_EQ(message("levels:bits=9"),
            "codec 'levels:bits=9': bits is '9'; it is an integer from 2 to 8. Correct it.");
  EXPECT_EQ(message("sign:block=12"),
            "codec 'sign:block=12': block is '12'; it is an integer from 8 to 65536, a multiple of "
            "8. Correct it.");
  EXPECT_EQ(message("topk:ratio=2"),
            "codec 'topk:ratio=2': ratio is '2'; it is a number above 0 and up to 1. Correct it.");
  EXPECT_EQ(message("levels:norm=l1"),
            "codec 'levels:norm=l1': norm is 'l1'; it is 'max' or 'l2'. Correct it.");
  for (const char* levels : {"cubic", "8000", "80001000", "1000800g", "100080000"}) {
    const std::string spec = std::string("levels:bits=3,levels=") + levels;
    EXPECT_EQ(message(spec.c_str()),
              "codec '" + spec + "': levels is '" + levels +
                  "'; it is 'uniform' or 'exponential', or 2 numbers of four hexadecimal digits, "
                  "none below the one before. Correct it.");
  }
  EXPECT_EQ(message("levels:bit=4"),
            "codec 'levels:bit=4': 'bit' is no parameter of 'levels', or is given twice. It has "
            "bits, block, levels, norm, phases.");
  EXPECT_EQ(message("fp16:bits=4"),
            "codec 'fp16:bits=4': 'bits' is no parameter of 'fp16', or is given twice. It has "
            "none.");
  EXPECT_EQ(
      message("levels:bits"),
      "codec 'levels:bits': 'bits' is not key=value. Write it like 'levels:bits=4,block=512'.");
  EXPECT_EQ(MakeCodec("").status().code(), Code::kInvalidArgument);
}

TEST(CodecSet, finds_the_same_codec_again) {
  const auto codecs = MakeCodecSet();
  auto first = codecs->Find("sign:block=64");
  auto second = codecs->Find("sign:block=64");

  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_TRUE(*first == *second);
  EXPECT_EQ(codecs->Find("sign:block=63").status().code(), Code::kInvalidArgument);
}

// Fitted levels are part of a spec.
TEST(CodecSet, does_not_keep_what_nobody_has_asked_for_since) {
  const auto codecs = MakeCodecSet();
  const auto spec_of = [](int seed) { return "topk:ratio=0." + std::to_string(100'000 + seed); };
  const auto used = codecs->Find("fp16");
  ASSERT_OK(used);
  const std::weak_ptr<const Codec> first = *codecs->Find(spec_of(0));
  for (int seed = 1; seed < 10'000; ++seed) {
    ASSERT_OK(codecs->Find(spec_of(seed)));
    EXPECT_TRUE(*codecs->Find("fp16") == *used);
  }
  EXPECT_TRUE(first.expired());
  ASSERT_OK(codecs->Find(spec_of(0)));
}

}  // namespace
}  // namespace rabit
