// Every kernel set against float64 arithmetic and against each other, bit for bit.
#include "arithmetic/reduce.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

using Buffer = std::vector<std::byte>;

constexpr DType kAllDTypes[] = {DType::kUint8,   DType::kInt8,  DType::kUint16,  DType::kInt16,
                                DType::kInt32,   DType::kInt64, DType::kFloat16, DType::kFloat32,
                                DType::kFloat64, DType::kBool,  DType::kBfloat16};
constexpr ReduceOp kAllOps[] = {ReduceOp::kAverage, ReduceOp::kSum,     ReduceOp::kMin,
                                ReduceOp::kMax,     ReduceOp::kProduct, ReduceOp::kBitAnd,
                                ReduceOp::kBitOr,   ReduceOp::kBitXor};
constexpr DType kFloats[] = {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64};

// Decodes a 16-bit float by its definition, independent of the code under test.
double Decode(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

double ValueAt(DType dtype, const std::byte* data, int64_t i) {
  const std::byte* at = data + i * static_cast<int64_t>(SizeOf(dtype));
  const auto read = [at](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kUint8:
      return read(uint8_t{});
    case DType::kInt8:
      return read(int8_t{});
    case DType::kUint16:
      return read(uint16_t{});
    case DType::kInt16:
      return read(int16_t{});
    case DType::kInt32:
      return read(int32_t{});
    case DType::kInt64:
      return static_cast<double>(read(int64_t{}));
    case DType::kFloat32:
      return read(float{});
    case DType::kFloat64:
      return read(double{});
    case DType::kBool:
      return read(uint8_t{});
    case DType::kFloat16:
      return Decode(read(uint16_t{}), 5);
    case DType::kBfloat16:
      return Decode(read(uint16_t{}), 8);
    default:
      break;  // not in kAllDTypes
  }
  return 0;
}

// Random bits: every NaN, infinity and subnormal turns up.  Bool is 0 or 1.
Buffer RandomBits(DType dtype, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Buffer data(static_cast<size_t>(count) * SizeOf(dtype));
  for (std::byte& value : data) {
    value = static_cast<std::byte>(dtype == DType::kBool ? random() & 1 : random() & 0xff);
  }
  return data;
}

// Small whole numbers, 1 to 3 (bool: 0 and 1): exact in every dtype through short sums and
// products.
Buffer SmallNumbers(DType dtype, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Buffer data(static_cast<size_t>(count) * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const int value =
        dtype == DType::kBool ? static_cast<int>(random() & 1) : 1 + static_cast<int>(random() % 3);
    const float as_float = static_cast<float>(value);
    const double as_double = value;
    const int64_t as_integer = value;
    std::byte* at = data.data() + i * static_cast<int64_t>(SizeOf(dtype));
    constexpr uint16_t kFloat16Of[] = {0, 0x3c00, 0x4000, 0x4200};
    constexpr uint16_t kBfloat16Of[] = {0, 0x3f80, 0x4000, 0x4040};
    const void* from = &as_integer;  // little-endian: the low bytes
    if (dtype == DType::kFloat16) from = &kFloat16Of[value];
    if (dtype == DType::kBfloat16) from = &kBfloat16Of[value];
    if (dtype == DType::kFloat32) from = &as_float;
    if (dtype == DType::kFloat64) from = &as_double;
    std::memcpy(at, from, SizeOf(dtype));
  }
  return data;
}

double ApplyOracle(ReduceOp op, DType dtype, double a, double b) {
  if (dtype == DType::kBool) {
    const bool x = a != 0, y = b != 0;
    switch (op) {
      case ReduceOp::kProduct:
      case ReduceOp::kMin:
      case ReduceOp::kBitAnd:
        return x && y;
      case ReduceOp::kBitXor:
        return x != y;
      default:
        return x || y;
    }
  }
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::fmin(a, b);
    case ReduceOp::kMax:
      return std::fmax(a, b);
    case ReduceOp::kBitAnd:
      return static_cast<double>(int64_t(a) & int64_t(b));
    case ReduceOp::kBitOr:
      return static_cast<double>(int64_t(a) | int64_t(b));
    case ReduceOp::kBitXor:
      return static_cast<double>(int64_t(a) ^ int64_t(b));
  }
  return 0;
}

std::vector<const std::byte*> Pointers(const std::vector<Buffer>& buffers, size_t skip = 0) {
  std::vector<const std::byte*> pointers;
  for (const Buffer& buffer : buffers) pointers.push_back(buffer.data() + skip);
  return pointers;
}

std::string Label(KernelSet set, DType dtype, ReduceOp op, int64_t count) {
  return std::string(Name(set)) + " " + std::string(Name(dtype)) + " " + std::string(Name(op)) +
         " count " + std::to_string(count);
}

TEST(Reduce, exact_values_of_every_dtype_and_op_match_the_oracle) {
  for (KernelSet set : AvailableKernelSets()) {
    for (DType dtype : kAllDTypes) {
      for (ReduceOp op : kAllOps) {
        if (!Supports(dtype, op)) continue;
        const int64_t count = 131;
        std::vector<Buffer> inputs;
        for (uint32_t i = 0; i < 4; ++i) inputs.push_back(SmallNumbers(dtype, count, 7 + i));
        Buffer out(inputs[0].size());

        ReduceWith(set, op, dtype, Pointers(inputs), out.data(), count);

        for (int64_t i = 0; i < count; ++i) {
          double expected = ValueAt(dtype, inputs[0].data(), i);
          for (size_t k = 1; k < inputs.size(); ++k) {
            expected = ApplyOracle(op, dtype, expected, ValueAt(dtype, inputs[k].data(), i));
          }
          EXPECT_EQ(ValueAt(dtype, out.data(), i), expected) << Label(set, dtype, op, count);
        }
      }
    }
  }
}

TEST(Reduce, all_kernel_sets_give_the_same_bits_at_every_length_and_alignment) {
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllOps) {
      if (!Supports(dtype, op)) continue;
      for (int64_t count = 0; count <= 67; ++count) {
        const size_t skip = static_cast<size_t>(count) % 4;
        const int64_t slack = 4;  // room for the shifted start
        std::vector<Buffer> inputs;
        for (uint32_t i = 0; i < 3; ++i) {
          inputs.push_back(RandomBits(dtype, count + slack, static_cast<uint32_t>(count) * 3 + i));
        }
        const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
        Buffer expected(bytes + 8, std::byte{0xab});
        ReduceWith(KernelSet::kPortable, op, dtype, Pointers(inputs, skip), expected.data() + skip,
                   count);
        for (KernelSet set : AvailableKernelSets()) {
          Buffer out(bytes + 8, std::byte{0xab});

          ReduceWith(set, op, dtype, Pointers(inputs, skip), out.data() + skip, count);

          EXPECT_TRUE(out == expected) << Label(set, dtype, op, count);
        }
      }
    }
  }
}

TEST(Reduce, large_buffers_and_many_inputs_give_the_same_bits_in_place) {
  for (DType dtype : kAllDTypes) {
    const int64_t count = 100'003;
    std::vector<Buffer> inputs;
    for (uint32_t i = 0; i < 9; ++i) inputs.push_back(RandomBits(dtype, count, 100 + i));
    Buffer expected(inputs[0].size());
    ReduceWith(KernelSet::kPortable, ReduceOp::kSum, dtype, Pointers(inputs), expected.data(),
               count);
    for (KernelSet set : AvailableKernelSets()) {
      std::vector<Buffer> copies = inputs;

      ReduceWith(set, ReduceOp::kSum, dtype, Pointers(copies), copies[4].data(), count);

      EXPECT_TRUE(copies[4] == expected) << Label(set, dtype, ReduceOp::kSum, count);
    }
  }
}

TEST(Reduce, sixteen_bit_floats_round_once) {
  // 2048 + 1 + 1 is 2050 in float32; float16 after each step would stay at 2048.
  const uint16_t inputs[] = {0x6800, 0x3c00, 0x3c00};
  uint16_t out = 0;
  for (KernelSet set : AvailableKernelSets()) {
    const std::byte* pointers[3];
    for (int i = 0; i < 3; ++i) pointers[i] = reinterpret_cast<const std::byte*>(&inputs[i]);

    ReduceWith(set, ReduceOp::kSum, DType::kFloat16, pointers, reinterpret_cast<std::byte*>(&out),
               1);

    EXPECT_EQ(out, 0x6801);
  }
}

TEST(Reduce, float_sums_follow_the_order_of_the_inputs) {
  const float inputs[] = {1e8f, 1.0f, -1e8f, 1.0f};
  const std::byte* pointers[4];
  for (int i = 0; i < 4; ++i) pointers[i] = reinterpret_cast<const std::byte*>(&inputs[i]);
  float out = 0;

  Reduce(ReduceOp::kSum, DType::kFloat32, pointers, reinterpret_cast<std::byte*>(&out), 1);

  EXPECT_EQ(out, 1.0f);  // ((1e8 + 1) - 1e8) + 1, where 1e8 + 1 is 1e8
}

TEST(Reduce, not_a_number_survives_every_op) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    for (int position = 0; position < 2; ++position) {
      float inputs[2] = {1, 1};
      inputs[position] = std::nanf("7");
      const std::byte* pointers[] = {reinterpret_cast<const std::byte*>(&inputs[0]),
                                     reinterpret_cast<const std::byte*>(&inputs[1])};
      float out = 0;

      Reduce(op, DType::kFloat32, pointers, reinterpret_cast<std::byte*>(&out), 1);

      EXPECT_TRUE(std::isnan(out));
    }
  }
}

TEST(Convert, every_float16_and_bfloat16_widens_exactly) {
  for (KernelSet set : AvailableKernelSets()) {
    for (DType dtype : {DType::kFloat16, DType::kBfloat16}) {
      std::vector<uint16_t> all(65536);
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
      std::vector<float> wide(all.size());
      const std::byte* from = reinterpret_cast<const std::byte*>(all.data());

      ConvertWith(set, dtype, from, DType::kFloat32, reinterpret_cast<std::byte*>(wide.data()),
                  65536);

      for (int64_t i = 0; i < 65536; ++i) {
        const double expected = ValueAt(dtype, from, i);
        const double seen = wide[static_cast<size_t>(i)];
        EXPECT_TRUE(std::isnan(expected) ? std::isnan(seen) : seen == expected) << i;
        EXPECT_EQ(std::signbit(wide[static_cast<size_t>(i)]), (i & 0x8000) != 0) << i;
      }
    }
  }
}

// The nearest 16-bit value with ties to even, found by comparing neighbours.
uint16_t NearestOracle(double value, DType dtype) {
  const int exponent_bits = dtype == DType::kFloat16 ? 5 : 8;
  const uint16_t infinity = dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  const double largest = Decode(static_cast<uint16_t>(infinity - 1), exponent_bits);
  const double step = largest - Decode(static_cast<uint16_t>(infinity - 2), exponent_bits);
  if (magnitude >= largest + step / 2) return sign | infinity;
  uint16_t low = 0, high = static_cast<uint16_t>(infinity - 1);
  while (low < high) {  // the largest representable value <= magnitude
    const uint16_t middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (Decode(middle, exponent_bits) <= magnitude) {
      low = middle;
    } else {
      high = static_cast<uint16_t>(middle - 1);
    }
  }
  if (low == infinity - 1) return sign | low;
  const double below = magnitude - Decode(low, exponent_bits);
  const double above = Decode(static_cast<uint16_t>(low + 1), exponent_bits) - magnitude;
  const bool goes_up = above < below || (above == below && (low & 1) != 0);
  return sign | static_cast<uint16_t>(low + (goes_up ? 1 : 0));
}

std::vector<double> ValuesThatAreHardToRound(DType dtype) {
  std::mt19937_64 random(5);
  const int exponent_bits = dtype == DType::kFloat16 ? 5 : 8;
  std::vector<double> values = {0.0, -0.0, 1e300, -1e300, 65519.999, 65520, 1e-300, 3.4e38, 3.5e38};
  for (int i = 0; i < 20'000; ++i) {
    const auto bits = static_cast<uint16_t>(random() & 0x7fff);
    const double low = Decode(bits, exponent_bits);
    const double high = Decode(static_cast<uint16_t>(bits + 1), exponent_bits);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const double tie = low + (high - low) / 2;
    // A hair off the tie: rounding first to float32 would land on the tie and lose the direction.
    for (double value : {tie, std::nextafter(tie, 0.0), std::nextafter(tie, 1e300)}) {
      values.push_back((random() & 1) != 0 ? value : -value);
    }
  }
  return values;
}

TEST(Convert, float64_to_sixteen_bits_rounds_once_to_nearest_even) {
  for (DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    const std::vector<double> values = ValuesThatAreHardToRound(dtype);
    std::vector<uint16_t> out(values.size());
    for (KernelSet set : AvailableKernelSets()) {
      ConvertWith(set, DType::kFloat64, reinterpret_cast<const std::byte*>(values.data()), dtype,
                  reinterpret_cast<std::byte*>(out.data()), static_cast<int64_t>(values.size()));

      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(out[i], NearestOracle(values[i], dtype)) << Name(set) << " " << values[i];
      }
    }
  }
}

TEST(Convert, float32_to_sixteen_bits_rounds_to_nearest_even) {
  for (DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    std::vector<float> values;
    for (double value : ValuesThatAreHardToRound(dtype))
      values.push_back(static_cast<float>(value));
    std::vector<uint16_t> out(values.size());
    for (KernelSet set : AvailableKernelSets()) {
      ConvertWith(set, DType::kFloat32, reinterpret_cast<const std::byte*>(values.data()), dtype,
                  reinterpret_cast<std::byte*>(out.data()), static_cast<int64_t>(values.size()));

      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(out[i], NearestOracle(values[i], dtype)) << Name(set) << " " << values[i];
      }
    }
  }
}

TEST(Convert, every_pair_gives_the_same_bits_in_every_kernel_set) {
  for (DType from : kFloats) {
    for (DType to : kFloats) {
      for (int64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 33, 5003}) {
        const Buffer input = RandomBits(from, count, static_cast<uint32_t>(count));
        Buffer expected(static_cast<size_t>(count) * SizeOf(to));
        ConvertWith(KernelSet::kPortable, from, input.data(), to, expected.data(), count);
        for (KernelSet set : AvailableKernelSets()) {
          Buffer out(expected.size());

          ConvertWith(set, from, input.data(), to, out.data(), count);

          EXPECT_TRUE(out == expected)
              << Name(set) << " " << Name(from) << " to " << Name(to) << " count " << count;
        }
      }
    }
  }
}

TEST(Epilogue, integers_truncate_toward_zero) {
  int32_t values[] = {-7, 7, -1, 0, 9};
  ApplyEpilogue({2, 1.0}, DType::kInt32, reinterpret_cast<std::byte*>(values), 5);
  const int32_t expected[] = {-3, 3, 0, 0, 4};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(values[i], expected[i]);
}

TEST(Epilogue, integers_are_divided_and_scaled_before_they_are_truncated) {
  int8_t values[] = {3, -3, 5, 100, -100};
  ApplyEpilogue({2, 3.0}, DType::kInt8, reinterpret_cast<std::byte*>(values), 5);
  const int8_t expected[] = {4, -4, 7, 127, -128};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(int{values[i]}, int{expected[i]});
}

TEST(Epilogue, floats_divide_rather_than_multiply_by_an_inverse) {
  std::vector<float> values(37);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 1.7f;
  std::vector<float> out = values;
  ApplyEpilogue({3, 1.0}, DType::kFloat32, reinterpret_cast<std::byte*>(out.data()), 37);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(out[i], values[i] / 3.0f);
}

// The values at the ends of a type: the largest and those next to it, the smallest and those next
// to it, their negatives, and zero; element i of input k is value (i + 7 k^2) of them, so that sums
// cancel, round and overflow.
Buffer EndsOfType(DType dtype, int64_t count, int64_t input) {
  const int bits = 8 * static_cast<int>(SizeOf(dtype));
  const bool is_half = dtype == DType::kFloat16;
  const int64_t largest = IsFloat(dtype) ? (is_half ? 0x7bff : 0x7f7f)
                          : dtype == DType::kUint8 || dtype == DType::kUint16
                              ? (int64_t{1} << bits) - 1
                              : (int64_t{1} << (bits - 1)) - 1;
  std::vector<int64_t> patterns;
  for (const int64_t step : {0, 1, 2, 3}) {
    for (const int64_t pattern : {largest - step, step}) {
      patterns.push_back(pattern);
      patterns.push_back(IsFloat(dtype) ? pattern | 0x8000 : -pattern - 1);
    }
  }
  Buffer data(static_cast<size_t>(count) * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const auto place = static_cast<size_t>(i + 7 * input * input) % patterns.size();
    std::memcpy(data.data() + i * static_cast<int64_t>(SizeOf(dtype)), &patterns[place],
                SizeOf(dtype));  // little-endian
  }
  return data;
}

constexpr DType kNarrow[] = {DType::kUint8, DType::kInt8,    DType::kUint16,  DType::kInt16,
                             DType::kInt32, DType::kFloat16, DType::kBfloat16};

// One rounding, and what a sum in float32 may be off where large values cancel.
void ExpectMean(DType dtype, const std::vector<Buffer>& inputs, int64_t i, double seen,
                const std::string& label) {
  double sum = 0;
  double magnitude = 0;
  for (const Buffer& input : inputs) {
    sum += ValueAt(dtype, input.data(), i);
    magnitude += std::fabs(ValueAt(dtype, input.data(), i));
  }
  const auto size = static_cast<double>(inputs.size());
  const double exact = IsFloat(dtype) ? sum / size : std::trunc(sum / size);
  double tolerance = 0;
  if (dtype == DType::kFloat16) tolerance = std::max(std::fabs(exact) * 0x1p-11, 0x1p-25);
  if (dtype == DType::kBfloat16) tolerance = std::max(std::fabs(exact) * 0x1p-8, 0x1p-134);
  if (IsFloat(dtype)) tolerance += magnitude * 0x1p-23;
  EXPECT_TRUE(std::fabs(seen - exact) <= tolerance) << label << ": " << seen << " for " << exact;
}

TEST(Reduce, a_mean_of_values_at_the_ends_of_a_type_is_right) {
  constexpr int64_t kCount = 203;
  for (const KernelSet set : AvailableKernelSets()) {
    for (const DType dtype : kNarrow) {
      for (const int size : {1, 2, 3, 4, 5, 9}) {
        std::vector<Buffer> inputs;
        for (int k = 0; k < size; ++k) inputs.push_back(EndsOfType(dtype, kCount, k));
        Buffer out(inputs[0].size());
        const Epilogue epilogue = EpilogueOf(ReduceOp::kAverage, dtype, size, 1.0);

        ReduceWith(set, ReduceOp::kAverage, dtype, Pointers(inputs), out.data(), kCount, epilogue);

        for (int64_t i = 0; i < kCount; ++i) {
          ExpectMean(dtype, inputs, i, ValueAt(dtype, out.data(), i),
                     Label(set, dtype, ReduceOp::kAverage, size) + " element " + std::to_string(i));
        }
      }
    }
  }
}

TEST(Reduce, a_mean_that_is_scaled_is_rounded_once) {
  // 65504 + 65504, divided by 2, times 0.75; and 1 + 2, divided by 2, times 3, which is 4.5.
  const uint16_t halves[] = {0x7bff, 0x7bff};
  const int8_t bytes[] = {1, 2};
  for (const KernelSet set : AvailableKernelSets()) {
    const std::byte* pointers[] = {reinterpret_cast<const std::byte*>(&halves[0]),
                                   reinterpret_cast<const std::byte*>(&halves[1])};
    uint16_t half = 0;
    ReduceWith(set, ReduceOp::kSum, DType::kFloat16, pointers, reinterpret_cast<std::byte*>(&half),
               1, {2, 0.75});
    EXPECT_EQ(Decode(half, 5), 49120.0);  // the nearest to 49128

    pointers[0] = reinterpret_cast<const std::byte*>(&bytes[0]);
    pointers[1] = reinterpret_cast<const std::byte*>(&bytes[1]);
    int8_t value = 0;
    ReduceWith(set, ReduceOp::kSum, DType::kInt8, pointers, reinterpret_cast<std::byte*>(&value), 1,
               {2, 3.0});
    EXPECT_EQ(int{value}, 4);
  }
}

TEST(Reduce, finished_sums_have_the_same_bits_in_every_kernel_set_and_in_place) {
  for (const DType dtype : kAllDTypes) {
    for (const int64_t count : {1, 7, 33, 67, 1003}) {
      std::vector<Buffer> inputs;
      for (uint32_t i = 0; i < 5; ++i) {
        inputs.push_back(RandomBits(dtype, count, static_cast<uint32_t>(count) * 5 + i));
      }
      for (const Epilogue& epilogue : {Epilogue{5, 1.0}, Epilogue{1, 0.25}, Epilogue{5, 0.3}}) {
        Buffer expected(inputs[0].size());
        ReduceWith(KernelSet::kPortable, ReduceOp::kSum, dtype, Pointers(inputs), expected.data(),
                   count, epilogue);
        for (const KernelSet set : AvailableKernelSets()) {
          std::vector<Buffer> copies = inputs;

          ReduceWith(set, ReduceOp::kSum, dtype, Pointers(copies), copies[2].data(), count,
                     epilogue);

          EXPECT_TRUE(copies[2] == expected) << Label(set, dtype, ReduceOp::kSum, count);
        }
      }
    }
  }
}

TEST(Convert, integers_widen_and_come_back_as_the_nearest_value) {
  const int32_t wide[] = {-300, -128, 0, 127, 300};
  int8_t narrow[5];
  Convert(DType::kInt32, reinterpret_cast<const std::byte*>(wide), DType::kInt8,
          reinterpret_cast<std::byte*>(narrow), 5);
  const int8_t expected[] = {-128, -128, 0, 127, 127};
  int32_t back[5];
  Convert(DType::kInt8, reinterpret_cast<const std::byte*>(narrow), DType::kInt32,
          reinterpret_cast<std::byte*>(back), 5);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(int{narrow[i]}, int{expected[i]});
    EXPECT_EQ(back[i], int32_t{expected[i]});
  }
}

TEST(Scale, integers_use_float64_truncate_and_stay_in_range) {
  int8_t values[] = {100, -100, 5, -5, 0};
  Scale(DType::kInt8, reinterpret_cast<const std::byte*>(values),
        reinterpret_cast<std::byte*>(values), 5, 1.5);
  const int8_t expected[] = {127, -128, 7, -7, 0};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(int{values[i]}, int{expected[i]});

  int64_t big[] = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  Scale(DType::kInt64, reinterpret_cast<const std::byte*>(big), reinterpret_cast<std::byte*>(big),
        2, 2.0);
  EXPECT_EQ(big[0], std::numeric_limits<int64_t>::max());
  EXPECT_EQ(big[1], std::numeric_limits<int64_t>::min());
}

TEST(Scale, floats_multiply_in_their_own_precision_and_bool_stays) {
  std::vector<float> values(19, 0.3f);
  Scale(DType::kFloat32, reinterpret_cast<const std::byte*>(values.data()),
        reinterpret_cast<std::byte*>(values.data()), 19, 0.1);
  for (float value : values) EXPECT_EQ(value, 0.3f * 0.1f);

  uint8_t flags[] = {0, 1};
  Scale(DType::kBool, reinterpret_cast<const std::byte*>(flags),
        reinterpret_cast<std::byte*>(flags), 2, 0.0);
  EXPECT_EQ(int{flags[1]}, 1);
}

TEST(Reduce, complex_numbers_are_summed_divided_and_scaled_as_pairs) {
  for (DType dtype : {DType::kComplex64, DType::kComplex128}) {
    const DType real = dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
    const std::vector<Buffer> inputs = {SmallNumbers(real, 38, 1), SmallNumbers(real, 38, 2)};
    Buffer as_complex(inputs[0].size()), as_real(inputs[0].size());

    Reduce(ReduceOp::kAverage, dtype, Pointers(inputs), as_complex.data(), 19);
    ApplyEpilogue({3, 1.0}, dtype, as_complex.data(), 19);
    Scale(dtype, as_complex.data(), as_complex.data(), 19, 0.7);
    Reduce(ReduceOp::kAverage, real, Pointers(inputs), as_real.data(), 38);
    ApplyEpilogue({3, 1.0}, real, as_real.data(), 38);
    Scale(real, as_real.data(), as_real.data(), 38, 0.7);

    EXPECT_TRUE(as_complex == as_real) << Name(dtype);
    FillIdentity(ReduceOp::kSum, dtype, as_complex.data(), 19);
    EXPECT_TRUE(as_complex == Buffer(as_complex.size())) << Name(dtype);
  }
}

TEST(Supports, is_one_table_of_types_and_operations) {
  constexpr DType kExchanged[] = {
      DType::kUint32,         DType::kUint64,         DType::kFloat8E4m3fn, DType::kFloat8E5m2,
      DType::kFloat8E4m3fnuz, DType::kFloat8E5m2fnuz, DType::kFloat8E8m0fnu};
  for (ReduceOp op : kAllOps) {
    const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
    for (DType dtype : kExchanged) EXPECT_FALSE(Supports(dtype, op)) << Name(dtype) << Name(op);
    for (DType dtype : {DType::kComplex64, DType::kComplex128}) {
      EXPECT_EQ(Supports(dtype, op), is_sum) << Name(dtype) << Name(op);
    }
    const bool is_bitwise = op >= ReduceOp::kBitAnd;
    for (DType dtype : kFloats) EXPECT_EQ(Supports(dtype, op), !is_bitwise) << Name(dtype);
    EXPECT_TRUE(Supports(DType::kInt32, op) && Supports(DType::kBool, op)) << Name(op);
  }
}

TEST(FillIdentity, leaves_every_value_as_it_is) {
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllOps) {
      if (!Supports(dtype, op)) continue;
      const std::vector<Buffer> values = {SmallNumbers(dtype, 33, 3)};
      Buffer identity(values[0].size());
      FillIdentity(op, dtype, identity.data(), 33);
      Buffer out(identity.size());
      const std::byte* inputs[] = {identity.data(), values[0].data()};

      Reduce(op, dtype, inputs, out.data(), 33);

      EXPECT_TRUE(out == values[0]) << Name(dtype) << " " << Name(op);
    }
  }
}

}  // namespace
}  // namespace rabit
