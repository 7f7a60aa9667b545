#include "base/wire.h"

#include <cstdint>
#include <limits>
#include <random>

#include "testing/test.h"

namespace rabit {
namespace {

TEST(Wire, reads_back_what_was_written) {
  std::vector<std::byte> buffer;
  WireWriter writer(buffer);
  writer.U8(200);
  writer.U16(60'000);
  writer.U32(4'000'000'000u);
  writer.U64(1ULL << 63);
  writer.I32(-5);
  writer.I64(std::numeric_limits<int64_t>::min());
  writer.F64(-0.5);
  writer.Text("conv1.weight");
  writer.Varint(300);

  WireReader reader(buffer);
  EXPECT_EQ(reader.U8(), 200);
  EXPECT_EQ(reader.U16(), 60'000);
  EXPECT_EQ(reader.U32(), 4'000'000'000u);
  EXPECT_EQ(reader.U64(), 1ULL << 63);
  EXPECT_EQ(reader.I32(), -5);
  EXPECT_EQ(reader.I64(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(reader.F64(), -0.5);
  EXPECT_EQ(reader.Text(100), "conv1.weight");
  EXPECT_EQ(reader.Varint(), 300u);
  EXPECT_OK(reader.Finish("message"));
}

TEST(Wire, bytes_are_little_endian) {
  std::vector<std::byte> buffer;
  WireWriter(buffer).U32(0x01020304);

  EXPECT_EQ(static_cast<int>(buffer[0]), 4);
  EXPECT_EQ(static_cast<int>(buffer[3]), 1);
}

TEST(Wire, reading_past_the_end_fails_and_stays_failed) {
  std::vector<std::byte> buffer(3);
  WireReader reader(buffer);

  EXPECT_EQ(reader.U32(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.U8(), 0);
  EXPECT_EQ(reader.left(), 0u);
  EXPECT_EQ(reader.Finish("hello").code(), Code::kInternal);
}

TEST(Wire, lengths_are_checked_against_bound_and_rest) {
  std::vector<std::byte> buffer;
  WireWriter(buffer).U32(0xffff'ffff);
  buffer.resize(20);

  EXPECT_TRUE(WireReader(buffer).Blob(SIZE_MAX).empty());
  EXPECT_EQ(WireReader(buffer).Count(1), 0u);
  std::vector<std::byte> five;
  WireWriter(five).Text("12345");
  WireReader bounded(five);
  EXPECT_EQ(bounded.Text(4), "");
  EXPECT_FALSE(bounded.ok());
}

TEST(Wire, leftover_bytes_are_an_error_that_names_the_message) {
  std::vector<std::byte> buffer(9);
  WireReader reader(buffer);
  reader.U64();

  EXPECT_EQ(reader.Finish("agreement").message().substr(0, 42),
            "agreement is malformed: 1 bytes are left o");
}

TEST(Wire, varint_covers_64_bits_and_refuses_more) {
  for (uint64_t value : {uint64_t{0}, uint64_t{127}, uint64_t{128}, UINT64_MAX}) {
    std::vector<std::byte> buffer;
    WireWriter(buffer).Varint(value);
    WireReader reader(buffer);
    EXPECT_EQ(reader.Varint(), value);
    EXPECT_OK(reader.Finish("varint"));
  }
  std::vector<std::byte> too_long(11, std::byte{0xff});
  WireReader reader(too_long);
  EXPECT_EQ(reader.Varint(), 0u);
  EXPECT_FALSE(reader.ok());
}

TEST(Wire, random_bytes_never_read_past_the_end) {
  std::mt19937 random(3);
  for (int round = 0; round < 10'000; ++round) {
    std::vector<std::byte> buffer(random() % 40);
    for (std::byte& byte : buffer) byte = static_cast<std::byte>(random());
    WireReader reader(buffer);
    while (reader.ok() && reader.left() > 0) {
      switch (random() % 4) {
        case 0:
          reader.Blob(1 << 20);
          break;
        case 1:
          reader.Varint();
          break;
        case 2:
          reader.Count(2);
          break;
        default:
          reader.U16();
          break;
      }
    }
    EXPECT_LE(reader.left(), buffer.size());
  }
}

}  // namespace
}  // namespace rabit
