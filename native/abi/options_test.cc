#include "abi/options.h"

#include "testing/test.h"

namespace rabit {
namespace {

using testing::Has;

std::string MessageOf(const char* text) { return ParseOptions(text).status().message(); }
TEST(Options, an_empty_text_gives_a_job_of_one_rank) {
  Result<Options> options = ParseOptions("");

  ASSERT_OK(options);
  EXPECT_EQ(options->rank, 0);
  EXPECT_EQ(options->size, 1);
  EXPECT_EQ(options->lanes, 0);
  EXPECT_EQ(options->started_lanes(), 2);
}

TEST(Options, values_are_read) {
  Result<Options> options = ParseOptions(
      "rank=1\nsize=4\nstore=127.0.0.1:80\nsecret=00\n\nfusion_bytes=0\ndeterministic=1\n"
      "scheduler=fifo\nallreduce_algorithm=a=b");

  ASSERT_OK(options);
  EXPECT_EQ(options->rank, 1);
  EXPECT_EQ(options->size, 4);
  EXPECT_EQ(options->fusion_bytes, 0);
  EXPECT_TRUE(options->deterministic);
  EXPECT_EQ(options->scheduler, "fifo");
  EXPECT_EQ(options->allreduce_algorithm, "a=b");
}

TEST(Options, an_unknown_key_names_the_nearest_known_one) {
  EXPECT_TRUE(Has(MessageOf("lames=2"), "did you mean 'lanes'?"));
  EXPECT_TRUE(Has(MessageOf("fusion_byte=2"), "did you mean 'fusion_bytes'?"));
}

TEST(Options, a_value_out_of_range_names_the_key_the_value_and_the_range) {
  const std::string message = MessageOf("lanes=-1");

  EXPECT_TRUE(Has(message, "lanes"));
  EXPECT_TRUE(Has(message, "'-1'"));
  EXPECT_TRUE(Has(message, "0 to 64"));
}

TEST(Options, malformed_values_are_refused) {
  for (const char* text : {"lanes=2x", "lanes=", "lanes= 2", "deterministic=yes", "transport=udp",
                           "transport=auto tcp", "lanes", "=3", "lanes=1\nlanes=2",
                           "partition_bytes=99999999999999999999", "rank=1", "size=2"}) {
    EXPECT_EQ(ParseOptions(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(Options, every_option_describes_itself) {
  for (const OptionInfo& info : DescribeOptions()) {
    EXPECT_FALSE(info.key.empty());
    EXPECT_FALSE(info.summary.empty()) << info.key;
  }
}

}  // namespace
}  // namespace rabit
