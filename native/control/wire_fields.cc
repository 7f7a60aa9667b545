#include "control/wire_fields.h"

#include <numeric>
#include <utility>

namespace rabit {
namespace {

constexpr uint8_t kRuns = 0;
constexpr uint8_t kBits = 1;

size_t VarintBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

// Calls f(gap, length) for every run of consecutive numbers; gap: since the run before.
template <class F>
void ForEachRun(const std::vector<int32_t>& numbers, F f) {
  int32_t next = 0;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    f(static_cast<uint64_t>(numbers[i] - next), static_cast<uint64_t>(end - i));
    next = numbers[end - 1] + 1;
    i = end;
  }
}

}  // namespace

void FieldWriter::Ranks(const RankSet& ranks) {
  const std::vector<int> list = ranks.ranks();
  uint64_t runs = 0;
  ForEachRun(list, [&runs](uint64_t, uint64_t) { ++runs; });
  Number(runs);
  ForEachRun(list, [this](uint64_t gap, uint64_t length) {
    Number(gap);
    Number(length - 1);
  });
}

void FieldReader::Ranks(RankSet& ranks) {
  int64_t next = 0;
  for (size_t left = Count(); left > 0 && from_.ok(); --left) {
    int32_t gap = 0, more = 0;
    Below(gap, kControlRanksMax);
    Below(more, kControlRanksMax);
    next += gap;
    Require(next + more < kControlRanksMax);
    if (!from_.ok()) return;
    for (const int64_t end = next + more + 1; next < end; ++next) ranks.Add(static_cast<int>(next));
  }
}

// As a bit vector or as runs, whichever is smaller.
void FieldWriter::Ids(const std::vector<TensorId>& ids) {
  Number(ids.size());
  if (ids.empty()) return;
  size_t run_bytes = 0;
  ForEachRun(ids, [&run_bytes](uint64_t gap, uint64_t length) {
    run_bytes += VarintBytes(gap) + VarintBytes(length - 1);
  });
  const size_t bit_bytes = static_cast<size_t>(ids.back()) / 8 + 1;
  if (run_bytes <= bit_bytes) {
    to_.U8(kRuns);
    ForEachRun(ids, [this](uint64_t gap, uint64_t length) {
      Number(gap);
      Number(length - 1);
    });
    return;
  }
  to_.U8(kBits);
  std::vector<std::byte> bits(bit_bytes);
  for (const TensorId id : ids) bits[static_cast<size_t>(id) / 8] |= std::byte{1} << (id % 8);
  Data(bits, bit_bytes);
}

void FieldReader::Ids(std::vector<TensorId>& ids) {
  int32_t count = 0;
  Below(count, kTensorIdLimit + 1);
  if (count == 0) return;
  const auto wanted = static_cast<size_t>(count);
  const uint8_t form = from_.U8();
  if (form == kBits) return ReadBits(ids, wanted);
  Require(form == kRuns);
  int64_t next = 0;
  while (from_.ok() && ids.size() < wanted) {
    int32_t gap = 0, more = 0;
    Below(gap, kTensorIdLimit);
    Below(more, kTensorIdLimit);
    next += gap;
    const int64_t end = next + more + 1;
    Require(end <= kTensorIdLimit && ids.size() + static_cast<size_t>(end - next) <= wanted);
    if (!from_.ok()) return;
    const size_t begin = ids.size();
    ids.resize(begin + static_cast<size_t>(end - next));
    std::iota(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(),
              static_cast<TensorId>(next));
    next = end;
  }
}

void FieldReader::ReadBits(std::vector<TensorId>& ids, size_t count) {
  const size_t bytes = Count();
  Require(bytes <= static_cast<size_t>(kTensorIdLimit) / 8 && count <= bytes * 8);
  if (!from_.ok()) return;
  ids.reserve(count);
  const ConstBytes bits = from_.Raw(bytes);
  for (size_t i = 0; i < bits.size(); ++i) {
    for (unsigned byte = static_cast<unsigned>(bits[i]); byte != 0; byte &= byte - 1)
      ids.push_back(static_cast<TensorId>(i * 8) + __builtin_ctz(byte));
  }
  Require(ids.size() == count);
}

// The first number with two bits that say how many more follow; zeros at the end are left out.
void FieldWriter::Counts(const BucketCounts& counts) {
  size_t last = counts.of.size() - 1;
  while (last > 0 && counts.of[last] == 0) --last;
  Number(counts.of[0] << 2 | last);
  for (size_t i = 1; i <= last; ++i) Number(counts.of[i]);
}

void FieldReader::Counts(BucketCounts& counts) {
  const uint64_t first = from_.Varint();
  counts = first >> 2;
  for (size_t i = 1; i <= (first & 3); ++i) counts.of[i] = from_.Varint();
}

void FieldReader::Extents(std::vector<int64_t>& extents) {
  extents.resize(Count());
  int64_t sum = 0;
  for (int64_t& extent : extents) {
    Rows(extent);
    Require(!__builtin_add_overflow(sum, extent, &sum));
  }
}

void FieldReader::Shape(std::vector<int64_t>& shape) {
  Extents(shape);
  int64_t product = 1;
  // Zero extents do not excuse an overflow of the others: a later shape may lose the zero.
  for (const int64_t extent : shape)
    Require(!__builtin_mul_overflow(product, std::max<int64_t>(extent, 1), &product));
  Require(shape.size() <= kDimensionsMax);
}

void FieldReader::Cause(Status& why) {
  const uint8_t code = from_.U8();
  Require(code <= static_cast<uint8_t>(Code::kInternal));
  int32_t culprit = -1;
  Optional(culprit, kControlRanksMax);
  std::string message;
  Text(message, kStatusBytesMax);
  if (from_.ok()) why = Status(static_cast<Code>(code), std::move(message)).WithCulprit(culprit);
}

}  // namespace rabit
