#include "codec/codec_table.h"

#include <cmath>
#include <limits>

#include "codec/cast.h"
#include "codec/identity.h"
#include "testing/codec_conformance.h"
#include "testing/test.h"

namespace rabit {
namespace {

RABIT_CODEC_SUITE(IdentityCodec, &MakeIdentityCodec);
RABIT_CODEC_SUITE(Float16Codec, &MakeFloat16Codec);
RABIT_CODEC_SUITE(Bfloat16Codec, &MakeBfloat16Codec);

TEST(CodecTable, makes_every_codec_under_its_own_name) {
  for (const CodecRow& row : CodecTable()) {
    auto codec = MakeCodec(row.name);
    ASSERT_OK(codec);
    EXPECT_EQ((*codec)->name(), row.name);
  }
}

TEST(CodecTable, an_unknown_name_lists_the_known_ones) {
  EXPECT_EQ(MakeCodec("fp8").status().message(),
            "no codec is called 'fp8'. Choose one of 'none', 'fp16', 'bf16'.");
}

TEST(CastCodec, halves_float32_and_refuses_integers) {
  const auto codec = MakeFloat16Codec();

  EXPECT_EQ(codec->EncodedBytes(5, DType::kFloat32), 10);
  EXPECT_FALSE(codec->Accepts(DType::kInt32));
  int32_t value = 1;
  std::byte out[2];
  EXPECT_EQ(codec->Encode({&value, 1, DType::kInt32, {}}, out, nullptr).code(), Code::kUnsupported);
}

TEST(CastCodec, rounds_to_nearest_even_and_overflows_to_infinity) {
  const auto codec = MakeFloat16Codec();
  float values[] = {1.0f + 1.0f / 2048, 1.0f + 3.0f / 2048, 1e6f};
  std::byte bytes[6];
  float back[3];

  ASSERT_OK(codec->Encode({values, 3, DType::kFloat32, {}}, bytes, nullptr));
  ASSERT_OK(codec->Decode(bytes, {back, 3, DType::kFloat32, {}}));

  EXPECT_EQ(back[0], 1.0f);
  EXPECT_EQ(back[1], 1.0f + 2.0f / 1024);
  EXPECT_EQ(back[2], std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace rabit
