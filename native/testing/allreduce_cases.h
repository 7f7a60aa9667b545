// Inputs, oracles and runs of the allreduce algorithms, for collective_conformance.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arithmetic/reduce.h"
#include "base/check.h"
#include "collective/allreduce.h"
#include "testing/run_ranks.h"
#include "testing/sanitizer.h"
#include "testing/test.h"

namespace rabit::testing {

// The transports of `size` ranks that are connected with each other, by rank.
using TransportMaker = std::function<std::vector<std::unique_ptr<Transport>>(int size)>;
using Buffer = std::vector<std::byte>;

inline Deadline TestDeadline() { return After(std::chrono::seconds(60)); }

inline std::vector<DType> ConformanceDTypes() {
  if (kIsSanitized) return {DType::kFloat32, DType::kBfloat16, DType::kInt64, DType::kBool};
  std::vector<DType> all;
  for (int i = 0; i < kKernelDTypeCount; ++i) all.push_back(static_cast<DType>(i));
  return all;
}

inline std::vector<ReduceOp> ConformanceOps() {
  if (kIsSanitized) return {ReduceOp::kSum, ReduceOp::kMin};
  return {ReduceOp::kAverage, ReduceOp::kSum,    ReduceOp::kMin,   ReduceOp::kMax,
          ReduceOp::kProduct, ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor};
}

inline std::vector<int> ConformanceSizes() {
  if (kIsThreadSanitized) return {1, 2, 3, 4, 5};
  if (kIsSanitized) return {1, 2, 3, 5, 8};
  return {1, 2, 3, 4, 5, 6, 7, 8, 9};
}

// Element i as a double: exact for everything that MakeInput produces.
inline double ToDouble(DType dtype, const Buffer& data, int64_t i) {
  const std::byte* at = data.data() + i * static_cast<int64_t>(SizeOf(dtype));
  const auto read = [at](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  };
  switch (dtype) {
    case DType::kUint8:
    case DType::kBool:
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
      return read(int64_t{});
    case DType::kFloat32:
      return read(float{});
    case DType::kFloat64:
      return read(double{});
    case DType::kFloat16:
    case DType::kBfloat16:
      break;
    default:
      RABIT_CHECK(false, "ConformanceDTypes() has no such type");
  }
  double value = 0;
  ConvertWith(KernelSet::kPortable, dtype, at, DType::kFloat64,
              reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

// Small integers, 0 and 1, or floats of magnitude 0.5 to 1.5.
inline Buffer MakeInput(DType dtype, int64_t count, int rank) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) * 1000 + static_cast<uint64_t>(dtype));
  Buffer data(static_cast<size_t>(count) * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    std::byte* at = data.data() + i * static_cast<int64_t>(SizeOf(dtype));
    const uint64_t bits = random();
    if (IsFloat(dtype)) {
      const double magnitude = 0.5 + static_cast<double>(bits >> 11) * 0x1p-53;
      const double value = (bits & 1) != 0 ? magnitude : -magnitude;
      Convert(DType::kFloat64, reinterpret_cast<const std::byte*>(&value), dtype, at, 1);
    } else {
      const int64_t value = dtype == DType::kBool ? static_cast<int64_t>(bits & 1)
                                                  : static_cast<int64_t>(bits % 11) - 3;
      std::memcpy(at, &value, SizeOf(dtype));  // little-endian
    }
  }
  return data;
}

// What the values must be, and by how much a float may differ.
struct Oracle {
  std::vector<double> values;
  std::vector<double> tolerances;
};

inline double WrapTo(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::kUint8:
      return static_cast<uint8_t>(value);
    case DType::kInt8:
      return static_cast<int8_t>(value);
    case DType::kUint16:
      return static_cast<uint16_t>(value);
    case DType::kInt16:
      return static_cast<int16_t>(value);
    case DType::kInt32:
      return static_cast<int32_t>(value);
    default:
      return static_cast<double>(value);
  }
}

inline int64_t ReduceIntegers(ReduceOp op, bool is_bool, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return is_bool ? (a | b) : a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kBitAnd:
      return a & b;
    case ReduceOp::kBitOr:
      return a | b;
    case ReduceOp::kBitXor:
      return a ^ b;
  }
  return 0;
}

inline double ReduceFloats(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    default:
      return a + b;
  }
}

inline double EpsilonOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 0x1p-10;
    case DType::kBfloat16:
      return 0x1p-7;
    case DType::kFloat32:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

inline Oracle ComputeOracle(DType dtype, ReduceOp op, const std::vector<Buffer>& inputs) {
  const int64_t count = static_cast<int64_t>(inputs[0].size() / SizeOf(dtype));
  Oracle oracle;
  for (int64_t i = 0; i < count; ++i) {
    double value = ToDouble(dtype, inputs[0], i);
    double magnitude = std::fabs(value);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const double next = ToDouble(dtype, inputs[rank], i);
      if (IsFloat(dtype)) {
        value = ReduceFloats(op, value, next);
      } else {
        value =
            WrapTo(dtype, ReduceIntegers(op, dtype == DType::kBool, int64_t(value), int64_t(next)));
      }
      magnitude = op == ReduceOp::kProduct ? std::fabs(value) : magnitude + std::fabs(next);
    }
    const bool is_exact = !IsFloat(dtype) || op == ReduceOp::kMin || op == ReduceOp::kMax;
    oracle.values.push_back(value);
    oracle.tolerances.push_back(
        is_exact ? 0 : EpsilonOf(dtype) * magnitude * static_cast<double>(inputs.size()));
  }
  return oracle;
}

inline void ExpectMatches(const Oracle& oracle, DType dtype, const Buffer& seen,
                          const std::string& label) {
  const int64_t count = static_cast<int64_t>(seen.size() / SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i);
    const double difference = std::fabs(ToDouble(dtype, seen, i) - oracle.values[at]);
    if (difference <= oracle.tolerances[at]) continue;
    ADD_FAILURE() << label << " element " << i << ": " << ToDouble(dtype, seen, i) << " for "
                  << oracle.values[at];
    return;
  }
}

inline std::vector<Buffer> MakeInputs(DType dtype, int64_t count, int size) {
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(MakeInput(dtype, count, rank));
  return inputs;
}

// Ranks 0, 1 and 2 on host 0, then two per host: uneven on purpose.
inline std::vector<int> UnevenHosts(int size) {
  std::vector<int> host_of;
  for (int rank = 0; rank < size; ++rank) host_of.push_back(rank < 3 ? 0 : 1 + (rank - 3) / 2);
  return host_of;
}

// One algorithm on one length; results[rank] is what that rank has afterwards.
struct AllreduceCase {
  const AllreduceAlgorithm* algorithm;
  int64_t count;
  std::vector<Buffer> results;
  std::string Label(DType dtype, ReduceOp op) const {
    return std::string(algorithm->name) + " " + std::string(Name(dtype)) + " " +
           std::string(Name(op)) + " count " + std::to_string(count) + " on " +
           std::to_string(results.size()) + " ranks";
  }
};

// Algorithms of which a case has timed out in this process.  Each further case would take as long,
// hundreds of them hours: they are left out.  Thread-safe.
class StuckAlgorithms {
 public:
  void Add(const AllreduceAlgorithm& algorithm) {
    std::lock_guard lock(mutex_);
    if (!names_.insert(algorithm.name).second) return;
    std::printf("%s has timed out: the rest of its cases is left out\n",
                std::string(algorithm.name).c_str());
    std::fflush(stdout);
  }
  bool Has(const AllreduceAlgorithm& algorithm) {
    std::lock_guard lock(mutex_);
    return names_.contains(algorithm.name);
  }

 private:
  std::mutex mutex_;
  std::set<std::string_view> names_;
};

inline StuckAlgorithms& Stuck() {
  static StuckAlgorithms stuck;
  return stuck;
}

// Runs all cases one after the other on every rank; cases of stuck algorithms are deleted.
inline void RunCases(const TransportMaker& make, DType dtype, ReduceOp op,
                     const std::vector<Buffer>& inputs, std::vector<AllreduceCase>& cases,
                     const Epilogue& epilogue = {}) {
  const int size = static_cast<int>(inputs.size());
  const std::vector<std::unique_ptr<Transport>> transports = make(size);
  const std::vector<int> host_of = UnevenHosts(size);
  std::erase_if(cases, [](const AllreduceCase& each) { return Stuck().Has(*each.algorithm); });
  for (AllreduceCase& each : cases) each.results.resize(inputs.size());
  RunRanks(size, [&](int rank) {
    const size_t index = static_cast<size_t>(rank);
    Scratch scratch;
    uint64_t sequence = 0;
    for (AllreduceCase& each : cases) {
      const auto end = inputs[index].begin() + each.count * static_cast<int64_t>(SizeOf(dtype));
      Buffer buffer(inputs[index].begin(), end);
      const CollectiveCall call{*transports[index], MakeTag(0, ++sequence), TestDeadline(),
                                scratch};
      const AllreduceArgs args{{buffer.data(), each.count, dtype, {}}, op, host_of, epilogue};
      const Status status = each.algorithm->run(call, args);
      EXPECT_OK(status) << each.Label(dtype, op) << " rank " << rank;
      each.results[index] = std::move(buffer);
      if (status.code() == Code::kTimedOut) Stuck().Add(*each.algorithm);
      if (!status.ok()) return;
    }
  });
}

inline std::vector<AllreduceCase> CasesOf(const std::vector<int64_t>& counts) {
  std::vector<AllreduceCase> cases;
  for (const AllreduceAlgorithm& algorithm : AllreduceAlgorithms()) {
    for (int64_t count : counts) cases.push_back({&algorithm, count, {}});
  }
  return cases;
}

}  // namespace rabit::testing
