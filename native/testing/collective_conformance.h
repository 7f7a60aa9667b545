// What every allreduce algorithm must do, on any transport: the right values, the same bits on
// every rank, for every dtype, op, number of ranks and length.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic/reduce.h"
#include "collective/allreduce.h"
#include "testing/allreduce_cases.h"
#include "testing/mean_conformance.h"
#include "testing/same_bytes.h"
#include "testing/sanitizer.h"
#include "testing/test.h"

namespace rabit::testing {

inline void CheckCases(DType dtype, ReduceOp op, const std::vector<Buffer>& inputs,
                       const std::vector<AllreduceCase>& cases) {
  const Oracle oracle = ComputeOracle(dtype, op, inputs);
  std::vector<const std::byte*> pointers;
  for (const Buffer& input : inputs) pointers.push_back(input.data());
  Buffer in_rank_order(inputs[0].size());
  ReduceWith(KernelSet::kPortable, op, dtype, pointers, in_rank_order.data(),
             static_cast<int64_t>(in_rank_order.size() / SizeOf(dtype)));
  ExpectMatches(oracle, dtype, in_rank_order, "the sum in rank order");
  for (const AllreduceCase& each : cases) {
    const Buffer& first = each.results[0];
    for (const Buffer& result : each.results) {
      EXPECT_TRUE(SameBytes(result, first))
          << each.Label(dtype, op) << ": ranks have different bits";
    }
    // The oracle has seen these bits; looking again takes most of the time under a sanitizer.
    const bool is_in_rank_order = SameBytes(first, std::span(in_rank_order).first(first.size()));
    if (!is_in_rank_order) ExpectMatches(oracle, dtype, first, each.Label(dtype, op));
    if (!each.algorithm->is_rank_ordered) continue;
    EXPECT_TRUE(is_in_rank_order) << each.Label(dtype, op) << ": not the sum in rank order";
  }
}

inline void CheckAllreduce(const TransportMaker& make, int size, DType dtype, ReduceOp op,
                           std::vector<int64_t> counts) {
  std::erase_if(counts, [](int64_t count) { return count < 0; });
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  const std::vector<Buffer> inputs = MakeInputs(dtype, longest, size);
  std::vector<AllreduceCase> cases = CasesOf(counts);
  RunCases(make, dtype, op, inputs, cases);
  if (!CurrentTestFailed()) CheckCases(dtype, op, inputs, cases);
}

// What is left of the reduction is done to every element, once, after its last contribution.
inline void CheckEpilogue(const TransportMaker& make, int size, DType dtype) {
  constexpr Epilogue kEpilogue{3, 5.0};
  const std::vector<int64_t> counts = {0, 1, size + 1, 1000, 65537};
  const std::vector<Buffer> inputs = MakeInputs(dtype, counts.back(), size);
  std::vector<AllreduceCase> plain = CasesOf(counts);
  std::vector<AllreduceCase> finished = CasesOf(counts);

  RunCases(make, dtype, ReduceOp::kSum, inputs, plain);
  RunCases(make, dtype, ReduceOp::kSum, inputs, finished, kEpilogue);

  for (size_t i = 0; i < plain.size() && !CurrentTestFailed(); ++i) {
    Buffer& expected = plain[i].results[0];
    ApplyEpilogue(kEpilogue, dtype, expected.data(), plain[i].count);
    for (const Buffer& result : finished[i].results) {
      EXPECT_TRUE(SameBytes(result, expected)) << plain[i].Label(dtype, ReduceOp::kSum);
    }
  }
}

// Registers the suite under `suite` for the transports of `make`.
inline int RegisterAllreduceConformance(const std::string& suite, TransportMaker make) {
  for (int size : ConformanceSizes()) {
    Register(suite, "allreduce_is_right_on_" + std::to_string(size) + "_ranks", [make, size] {
      for (DType dtype : ConformanceDTypes()) {
        for (ReduceOp op : ConformanceOps()) {
          if (!Supports(dtype, op)) continue;
          CheckAllreduce(make, size, dtype, op, {0, 1, size - 1, size, size + 1, 1000});
        }
        CheckAllreduce(make, size, dtype, ReduceOp::kSum, {65537});
      }
    });
  }
  Register(suite, "epilogues_are_applied_once", [make] {
    for (int size : ConformanceSizes()) {
      for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt64}) {
        CheckEpilogue(make, size, dtype);
      }
    }
  });
  Register(suite, "means_at_the_ends_of_a_type_are_right", [make] {
    for (int size : {2, 3, 4, 5}) {
      for (const DType dtype : NarrowDTypes()) CheckMeans(make, size, dtype);
    }
  });
  Register(suite, "allreduce_of_many_chunks_is_right", [make] {
    for (int size : kIsSanitized ? std::vector{2, 5} : std::vector{2, 3, 5, 6}) {
      CheckAllreduce(make, size, DType::kFloat32, ReduceOp::kSum, {1'000'003});
    }
  });
  Register(suite, "rank_ordered_sums_do_not_depend_on_how_buffers_are_split", [make] {
    constexpr int64_t kCount = 40'001;
    const std::vector<Buffer> inputs = MakeInputs(DType::kBfloat16, kCount, 5);
    const size_t kSkip = 12'345 * SizeOf(DType::kBfloat16);
    std::vector<Buffer> tails;
    for (const Buffer& input : inputs) {
      const std::span<const std::byte> rest = std::span(input).subspan(kSkip);
      tails.emplace_back(rest.begin(), rest.end());
    }
    std::vector<AllreduceCase> whole = CasesOf({kCount});
    std::vector<AllreduceCase> tail = CasesOf({kCount - 12'345});

    RunCases(make, DType::kBfloat16, ReduceOp::kSum, inputs, whole);
    RunCases(make, DType::kBfloat16, ReduceOp::kSum, tails, tail);

    for (size_t i = 0; i < whole.size() && !CurrentTestFailed(); ++i) {
      if (!whole[i].algorithm->is_rank_ordered) continue;
      const Buffer& all = whole[i].results[0];
      EXPECT_TRUE(std::ranges::equal(std::span(all).subspan(kSkip), tail[i].results[0]))
          << whole[i].algorithm->name;
    }
  });
  return 0;
}

}  // namespace rabit::testing
