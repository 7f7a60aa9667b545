#include "transport/tcp/frame.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "testing/test.h"
#include "testing/testdata.h"

namespace rabit {
namespace {

std::string Hex(ConstBytes bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

const FrameHeader kData = {.type = FrameType::kData,
                           .flags = kFrameAckNow,
                           .link = 3,
                           .sequence = 5,
                           .ack = 7,
                           .tag = 0x0200000000abcdef,
                           .message_bytes = 300000,
                           .offset = 262144,
                           .payload_bytes = 37856,
                           .payload_crc = 0x12345678,
                           .epoch = 6};

// The bytes may only change together with the version.  The fixture comes from a bitwise CRC
// written in Python.
TEST(Frame, bytes_are_those_of_the_frozen_fixture) {
  const auto path = testing::Testdata("transport/tcp/testdata/frame_v3.txt");
  std::ifstream file(path);
  ASSERT_TRUE(file.is_open()) << path.string();
  std::string name, data_hex, hello_hex;
  file >> name >> data_hex >> name >> hello_hex;

  FrameHeaderBytes bytes;
  EncodeFrameHeader(kData, bytes);
  EXPECT_EQ(Hex(bytes), data_hex);
  EncodeFrameHeader({.type = FrameType::kHello, .ack = 9}, bytes);
  EXPECT_EQ(Hex(bytes), hello_hex);
}

TEST(Frame, header_comes_through) {
  FrameHeaderBytes bytes;
  EncodeFrameHeader(kData, bytes);
  Result<FrameHeader> header = DecodeFrameHeader(bytes);
  ASSERT_OK(header);
  EXPECT_TRUE(*header == kData);
}

TEST(Frame, every_changed_bit_is_found) {
  FrameHeaderBytes good;
  EncodeFrameHeader(kData, good);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    FrameHeaderBytes changed = good;
    changed[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_FALSE(DecodeFrameHeader(changed).ok()) << "bit" << bit;
  }
}

TEST(Frame, values_out_of_bounds_are_refused) {
  FrameHeader payload_too_long = kData, past_the_end = kData, too_big = kData, ack = kData, nack = kData;
  payload_too_long.payload_bytes = kFramePayloadBytesMax + 1;
  past_the_end.payload_bytes = 37857;
  too_big.message_bytes = kMessageBytesMax + 1;
  ack.type = FrameType::kAck;  // carries no payload
  nack = {.type = FrameType::kNack, .sequence = 6, .ack = 7};  // what it asks for is confirmed
  for (const FrameHeader& header : {payload_too_long, past_the_end, too_big, ack, nack}) {
    FrameHeaderBytes bytes;
    EncodeFrameHeader(header, bytes);
    EXPECT_FALSE(DecodeFrameHeader(bytes).ok());
  }
}

}  // namespace
}  // namespace rabit
