#include "backend/ps/ps_wire.h"

#include <cstdio>
#include <fstream>
#include <string>

#include "base/bytes.h"
#include "testing/test.h"
#include "testing/testdata.h"

namespace rabit {
namespace {

PushHeader Example() { return {MakeTag(2, 77), 100'000, 1000, DType::kBfloat16, ReduceOp::kMax}; }

PushHeader UpdateExample() {
  return {MakeTag(5, 1),     50, 50, DType::kFloat32, ReduceOp::kSum, PushMode::kAdd,
          0x0123456789abcdef};
}

PushHeader CodedExample() {
  return {MakeTag(2, 78), 70'000, 9000, DType::kUint8, ReduceOp::kSum, PushMode::kCoded};
}

PushHeader MeanExample() {
  PushHeader header{MakeTag(2, 79), 70'000, 9000, DType::kFloat16};
  header.epilogue = {3, 0.5};
  return header;
}

std::string HexOf(ConstBytes bytes) {
  std::string text;
  for (const std::byte each : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(each));
    text += digits;
  }
  return text;
}

// The bytes on the wire may only change together with the version.
TEST(PsWire, bytes_are_those_of_the_frozen_example) {
  std::ifstream file(
      testing::Testdata("backend/ps/testdata/pushes_v" + std::to_string(kPsWireVersion) + ".txt"));
  ASSERT_TRUE(file.is_open());
  std::string name, push, update, group, placed, coded, mean;
  file >> name >> push >> name >> update >> name >> group >> name >> placed >> name >> coded;
  file >> name >> mean;

  EXPECT_EQ(HexOf(Encode(Example())), push);
  EXPECT_EQ(HexOf(Encode(UpdateExample())), update);
  EXPECT_EQ(HexOf(Encode(GroupHeader{3, 2})), group);
  EXPECT_EQ(HexOf(Encode(PlacedPush{Example(), {5, 99}})), placed);
  EXPECT_EQ(HexOf(Encode(CodedExample())), coded);
  EXPECT_EQ(HexOf(Encode(MeanExample())), mean);
}

TEST(PsWire, headers_come_back_as_they_were) {
  const auto push = DecodePushHeader(Encode(Example()), 4);
  ASSERT_OK(push);
  EXPECT_TRUE(*push == Example());

  const auto mean = DecodePushHeader(Encode(MeanExample()), 4);
  ASSERT_OK(mean);
  EXPECT_TRUE(*mean == MeanExample());

  const auto update = DecodePushHeader(Encode(UpdateExample()), 1);
  ASSERT_OK(update);
  EXPECT_TRUE(*update == UpdateExample());

  const GroupHeader group{3, 2};
  const auto told = DecodeGroupHeader(Encode(group), 4);
  ASSERT_OK(told);
  EXPECT_TRUE(*told == group);
}

TEST(PsWire, a_header_of_another_version_is_refused) {
  PushHeaderBytes push = Encode(Example());
  push[0] = std::byte{9};
  const Status status = DecodePushHeader(push, 4).status();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_TRUE(status.message().find("wire version 9, this is 6") != std::string::npos) << status;

  GroupHeaderBytes group = Encode(GroupHeader{3, 2});
  group[0] = std::byte{9};
  EXPECT_EQ(DecodeGroupHeader(group, 4).status().code(), Code::kInternal);
}

TEST(PsWire, what_cannot_be_pushed_is_refused) {
  PushHeader none = Example();
  none.count = 0;
  EXPECT_EQ(DecodePushHeader(Encode(none), 4).status().code(), Code::kInternal);
  // A server has memory for chunks of a limited size.
  PushHeader large = Example();
  large.chunk_count = PsChunkBytesMax(4) / 2;
  EXPECT_OK(DecodePushHeader(Encode(large), 4));
  ++large.chunk_count;
  EXPECT_EQ(DecodePushHeader(Encode(large), 4).status().code(), Code::kInternal);
  PushHeader bits = Example();
  bits.op = ReduceOp::kBitXor;  // of floats
  EXPECT_EQ(DecodePushHeader(Encode(bits), 4).status().code(), Code::kInternal);
  // What is kept is one worker's to update, and a clock is two numbers.
  EXPECT_EQ(DecodePushHeader(Encode(UpdateExample()), 4).status().code(), Code::kInternal);
  // Encodings are bytes of several.
  EXPECT_OK(DecodePushHeader(Encode(CodedExample()), 2));
  EXPECT_EQ(DecodePushHeader(Encode(CodedExample()), 1).status().code(), Code::kInternal);
  PushHeader floats = CodedExample();
  floats.dtype = DType::kFloat32;
  EXPECT_EQ(DecodePushHeader(Encode(floats), 2).status().code(), Code::kInternal);
  PushHeader none_divides = MeanExample();
  none_divides.epilogue.divisor = 0;
  EXPECT_EQ(DecodePushHeader(Encode(none_divides), 4).status().code(), Code::kInternal);
  PushHeader mean_of_one = UpdateExample();
  mean_of_one.epilogue.divisor = 2;
  EXPECT_EQ(DecodePushHeader(Encode(mean_of_one), 1).status().code(), Code::kInternal);
  PushHeader clock = UpdateExample();
  clock.mode = PushMode::kClock;
  EXPECT_EQ(DecodePushHeader(Encode(clock), 1).status().code(), Code::kInternal);
  PushHeader end;
  end.count = 1;
  end.mode = PushMode::kEnd;
  EXPECT_OK(DecodePushHeader(Encode(end), 2));
  EXPECT_EQ(DecodePushHeader(Encode(end), 1).status().code(), Code::kInternal);
}

TEST(PsWire, positions_follow_one_another) {
  const PlacedPush first{Example(), {5, 0}}, last{Example(), {5, 99}};
  EXPECT_TRUE((first.next() == PushPosition{5, 1}));
  EXPECT_TRUE((last.next() == PushPosition{6, 0}));
  const auto back = DecodePlacedPush(Encode(last), 4);
  ASSERT_OK(back);
  EXPECT_TRUE(*back == last);
  EXPECT_EQ(DecodePlacedPush(Encode(PlacedPush{Example(), {5, 100}}), 4).status().code(),
            Code::kInternal);
}

TEST(PsWire, groups_that_cannot_be_are_refused) {
  for (const GroupHeader& group : {GroupHeader{0, 2}, {-1, 2}, {3, 0}, {3, 5}}) {
    EXPECT_EQ(DecodeGroupHeader(Encode(group), 4).status().code(), Code::kInternal);
  }
}

}  // namespace
}  // namespace rabit
