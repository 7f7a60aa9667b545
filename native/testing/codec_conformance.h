// What every Codec must do.  RABIT_CODEC_SUITE(Name, make) registers the cases for one
// implementation; `make` returns a std::unique_ptr<Codec>.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "arithmetic/reduce.h"
#include "codec/codec.h"
#include "testing/test.h"

namespace rabit::testing {

inline constexpr int64_t kCodecCounts[] = {0, 1, 2, 7, 8, 63, 513, 4099};

// float64 values in the dtype's own representation; small integers, so that every dtype and every
// 16-bit codec represents them exactly.
class CodecBuffer {
 public:
  CodecBuffer(DType dtype, int64_t count, uint32_t seed) : dtype_(dtype), count_(count) {
    bytes_.resize(static_cast<size_t>(count) * SizeOf(dtype) + kGuard, kGuardByte);
    std::mt19937 random(seed);
    for (int64_t i = 0; i < count; ++i) Set(i, static_cast<double>(random() % 17) - 8.0);
  }

  TensorView view() { return {bytes_.data(), count_, dtype_, {}}; }
  double at(int64_t i) const {
    double value = 0;
    const std::byte* from = bytes_.data() + static_cast<size_t>(i) * SizeOf(dtype_);
    Convert(dtype_, from, DType::kFloat64, reinterpret_cast<std::byte*>(&value), 1);
    return value;
  }
  void Set(int64_t i, double value) {
    std::byte* to = bytes_.data() + static_cast<size_t>(i) * SizeOf(dtype_);
    Convert(DType::kFloat64, reinterpret_cast<const std::byte*>(&value), dtype_, to, 1);
  }
  bool IsGuardIntact() const {
    return std::all_of(bytes_.end() - kGuard, bytes_.end(),
                       [](std::byte byte) { return byte == kGuardByte; });
  }

 private:
  static constexpr size_t kGuard = 16;
  static constexpr std::byte kGuardByte{0x5a};
  const DType dtype_;
  const int64_t count_;
  std::vector<std::byte> bytes_;
};

inline std::vector<DType> AcceptedFloats(const Codec& codec) {
  std::vector<DType> accepted;
  for (DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64})
    if (codec.Accepts(dtype)) accepted.push_back(dtype);
  return accepted;
}

inline std::vector<std::byte> Encoded(const Codec& codec, CodecBuffer& from) {
  const TensorView view = from.view();
  std::vector<std::byte> bytes(static_cast<size_t>(codec.EncodedBytes(view.count, view.dtype)));
  std::unique_ptr<PartitionState> state = codec.NewState(view.count, view.dtype);
  EXPECT_OK(codec.Encode(view, bytes, state.get()));
  return bytes;
}

inline void CodecRoundTrip(Codec& codec) {
  for (DType dtype : AcceptedFloats(codec)) {
    for (int64_t count : kCodecCounts) {
      CodecBuffer from(dtype, count, 3);
      CodecBuffer to(dtype, count, 4);
      const std::vector<std::byte> bytes = Encoded(codec, from);
      EXPECT_OK(codec.Decode(bytes, to.view()));
      for (int64_t i = 0; i < count && codec.algebra() == Algebra::kLinear; ++i)
        EXPECT_EQ(to.at(i), from.at(i)) << Name(dtype) << i;
      EXPECT_TRUE(to.IsGuardIntact()) << Name(dtype) << count;
    }
  }
}

inline void CodecDecodeAdd(Codec& codec) {
  for (DType dtype : AcceptedFloats(codec)) {
    for (int64_t count : kCodecCounts) {
      CodecBuffer from(dtype, count, 5);
      CodecBuffer decoded(dtype, count, 6);
      CodecBuffer sum(dtype, count, 7);
      const CodecBuffer before = sum;
      const std::vector<std::byte> bytes = Encoded(codec, from);
      EXPECT_OK(codec.Decode(bytes, decoded.view()));
      EXPECT_OK(codec.DecodeAdd(bytes, sum.view()));
      for (int64_t i = 0; i < count; ++i)
        EXPECT_EQ(sum.at(i), before.at(i) + decoded.at(i)) << Name(dtype) << i;
      EXPECT_TRUE(sum.IsGuardIntact()) << Name(dtype) << count;
    }
  }
}

// Linear: reducing encodings gives the encoding of the sum.
inline void CodecIsLinear(Codec& codec) {
  if (codec.algebra() != Algebra::kLinear) SKIP_TEST("the codec is gather-only");
  for (DType dtype : AcceptedFloats(codec)) {
    CodecBuffer a(dtype, 513, 8);
    CodecBuffer b(dtype, 513, 9);
    CodecBuffer sum(dtype, 513, 10);
    std::vector<std::byte> left = Encoded(codec, a);
    const std::vector<std::byte> right = Encoded(codec, b);
    const std::byte* inputs[] = {left.data(), right.data()};
    const DType wire = codec.WireDType(dtype);
    const auto count = static_cast<int64_t>(left.size() / SizeOf(wire));
    Reduce(ReduceOp::kSum, wire, inputs, left.data(), count);
    EXPECT_OK(codec.Decode(left, sum.view()));
    for (int64_t i = 0; i < 513; ++i) EXPECT_EQ(sum.at(i), a.at(i) + b.at(i)) << Name(dtype) << i;
  }
}

inline void CodecIsDeterministic(Codec& codec) {
  for (DType dtype : AcceptedFloats(codec)) {
    CodecBuffer from(dtype, 4099, 11);
    EXPECT_TRUE(Encoded(codec, from) == Encoded(codec, from)) << Name(dtype);
  }
}

inline void CodecRefusesWrongSizes(Codec& codec) {
  for (DType dtype : AcceptedFloats(codec)) {
    CodecBuffer from(dtype, 9, 12);
    std::vector<std::byte> bytes(static_cast<size_t>(codec.EncodedBytes(9, dtype)) + 1);
    EXPECT_EQ(codec.Encode(from.view(), bytes, nullptr).code(), Code::kInvalidArgument);
    EXPECT_EQ(codec.Decode(bytes, from.view()).code(), Code::kInvalidArgument);
    EXPECT_EQ(codec.DecodeAdd(bytes, from.view()).code(), Code::kInvalidArgument);
  }
}

inline int RegisterCodecSuite(const std::string& suite,
                              const std::function<std::unique_ptr<Codec>()>& make) {
  const auto add = [&](const char* name, void (*check)(Codec&)) {
    Register(suite, name, [make, check] { check(*make()); });
  };
  add("decodes_what_it_encoded", &CodecRoundTrip);
  add("decode_add_adds_what_decode_gives", &CodecDecodeAdd);
  add("reduces_its_encodings_if_linear", &CodecIsLinear);
  add("gives_the_same_bytes_every_time", &CodecIsDeterministic);
  add("refuses_buffers_of_another_size", &CodecRefusesWrongSizes);
  return 0;
}

#define RABIT_CODEC_SUITE(suite, make)                          \
  [[maybe_unused]] static const int rabit_codec_suite_##suite = \
      ::rabit::testing::RegisterCodecSuite(#suite, make)

}  // namespace rabit::testing
