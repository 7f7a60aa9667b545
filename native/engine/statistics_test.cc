#include "engine/statistics.h"

#include <string>

#include "base/json_writer.h"
#include "testing/test.h"

namespace rabit {
namespace {

// The levels of a codec that is fitted to a tensor are part of its name.
TEST(Statistics, codecs_without_end_are_counted_together) {
  Statistics statistics;
  for (int fit = 0; fit < 1000; ++fit) {
    const std::string codec = "fitted:" + std::to_string(fit);
    Statistics::BucketRecord record;
    record.tensors = 1;
    record.backend = record.algorithm = "ring";
    record.codec = codec;
    statistics.AddBucket(record);
  }

  JsonWriter json;
  json.BeginObject();
  statistics.Write(json);
  const std::string text = json.EndObject().Take();

  EXPECT_TRUE(testing::Has(text, "\"fitted:63\":{\"tensors\":1,")) << text;
  EXPECT_TRUE(testing::Has(text, "\"others\":{\"tensors\":936,")) << text;
  EXPECT_TRUE(testing::Has(text, "\"ring\":{\"tensors\":1000,")) << text;
}

}  // namespace
}  // namespace rabit
