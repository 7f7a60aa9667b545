// Means at the ends of types that are too narrow for the sum, by every algorithm in rank order: the
// router gives them to no other (route/router.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/epilogue.h"
#include "testing/allreduce_cases.h"
#include "testing/same_bytes.h"

namespace rabit::testing {

inline std::vector<DType> NarrowDTypes() {
  std::vector<DType> narrow;
  for (const DType dtype : ConformanceDTypes()) {
    if (WideOf(dtype) != dtype) narrow.push_back(dtype);
  }
  return narrow;
}

// As MakeInput, of what lies at the ends of a narrow type: the largest value and those next to it,
// the smallest and those next to it, with both signs.
inline Buffer MakeEnds(DType dtype, int64_t count, int rank) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) * 2000 + static_cast<uint64_t>(dtype));
  const int bits = 8 * static_cast<int>(SizeOf(dtype));
  const bool is_signed =
      IsFloat(dtype) || dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32;
  const int64_t largest = dtype == DType::kFloat16    ? 0x7bff
                          : dtype == DType::kBfloat16 ? 0x7f7f
                                                      : (int64_t{1} << (bits - is_signed)) - 1;
  Buffer data(static_cast<size_t>(count) * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t draw = random();
    const auto step = static_cast<int64_t>(draw >> 8) % 4;
    int64_t pattern = (draw & 1) != 0 ? largest - step : step;
    // Whole runs of one sign, in which sums go far beyond the type.
    const bool is_negative = is_signed && (i / 8 % 4 == 0 || (i / 8 % 4 == 1 && (draw & 2) != 0));
    if (is_negative) pattern = IsFloat(dtype) ? pattern | 0x8000 : -pattern - 1;
    std::memcpy(data.data() + i * static_cast<int64_t>(SizeOf(dtype)), &pattern, SizeOf(dtype));
  }
  return data;
}

// The means of float64: integers are truncated, 16-bit floats rounded once, after what a sum in
// float32 may be off.
inline Oracle ComputeMeans(DType dtype, const std::vector<Buffer>& inputs) {
  const auto size = static_cast<double>(inputs.size());
  const double smallest = dtype == DType::kFloat16 ? 0x1p-24 : 0x1p-133;
  Oracle oracle;
  for (int64_t i = 0; i < static_cast<int64_t>(inputs[0].size() / SizeOf(dtype)); ++i) {
    double sum = 0;
    double magnitude = 0;
    for (const Buffer& input : inputs) {
      sum += ToDouble(dtype, input, i);
      magnitude += std::fabs(ToDouble(dtype, input, i));
    }
    const double mean = sum / size;
    const double rounding = std::max(EpsilonOf(dtype) * std::fabs(mean), smallest) / 2;
    oracle.values.push_back(IsFloat(dtype) ? mean : std::trunc(mean));
    oracle.tolerances.push_back(IsFloat(dtype) ? rounding + magnitude * 0x1p-22 : 0);
  }
  return oracle;
}

// The mean of values of a type is a value of the type, whatever their sum is.
inline void CheckMeans(const TransportMaker& make, int size, DType dtype) {
  const std::vector<int64_t> counts = {1, size + 1, 1000, 65537};
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(MakeEnds(dtype, counts.back(), rank));
  std::vector<AllreduceCase> cases = CasesOf(counts);
  std::erase_if(cases, [](const auto& each) { return !each.algorithm->is_rank_ordered; });
  const Epilogue epilogue = EpilogueOf(ReduceOp::kAverage, dtype, size, 1.0);

  RunCases(make, dtype, ReduceOp::kSum, inputs, cases, epilogue);

  const Oracle oracle = ComputeMeans(dtype, inputs);
  for (const AllreduceCase& each : cases) {
    if (CurrentTestFailed()) return;
    for (const Buffer& result : each.results) {
      EXPECT_TRUE(SameBytes(result, each.results[0]))
          << each.Label(dtype, ReduceOp::kAverage) << ": ranks have different bits";
    }
    ExpectMatches(oracle, dtype, each.results[0], each.Label(dtype, ReduceOp::kAverage));
  }
}

}  // namespace rabit::testing
