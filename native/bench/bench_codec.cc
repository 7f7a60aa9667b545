// Prints what encoding and decoding cost on one core, in nanoseconds for each element.
// Usage: bench_codec [elements, default 1 Mi]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codec/codec_kernels.h"
#include "codec/codec_table.h"

namespace rabit {
namespace {

// Of processor time, which other work on the machine does not stretch.
double NowNanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

template <class Body>
double NanosecondsEach(int64_t count, Body body) {
  std::vector<double> times;
  for (int i = 0; i < 41; ++i) {
    const double start = NowNanoseconds();
    body();
    times.push_back(NowNanoseconds() - start);
  }
  std::nth_element(times.begin(), times.begin() + 20, times.end());
  return times[20] / static_cast<double>(count);
}

// One rank: what travels is copied, as shared memory would.
class Alone final : public Exchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status Allreduce(const TensorView&) override { return {}; }
  Status Allgather(ConstBytes mine, Bytes all, std::span<const int64_t>) override {
    if (mine.data() != all.data()) std::memcpy(all.data(), mine.data(), mine.size());
    return {};
  }
  Status Alltoall(ConstBytes in, std::span<const int64_t>, Bytes out,
                  std::span<const int64_t>) override {
    std::memcpy(out.data(), in.data(), in.size());
    return {};
  }
  Result<Bytes> Scratch(size_t slot, size_t bytes) override {
    if (scratch_[slot].size() < bytes) scratch_[slot].resize(bytes);
    return Bytes(scratch_[slot]).first(bytes);
  }

 private:
  std::vector<std::byte> scratch_[kScratchSlots];
};

std::vector<float> Normal(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

void BenchLevels(const std::vector<float>& values, int bits, bool is_uniform) {
  constexpr int64_t kBlock = 512;
  const CodecKernels& kernels = BestCodecKernels();
  const auto count = static_cast<int64_t>(values.size()) / kBlock * kBlock;
  const LevelsShape shape{bits, is_uniform};
  const int64_t block_bytes = kBlock / 8 * bits;
  std::vector<uint8_t> codes(static_cast<size_t>(count / kBlock * block_bytes));
  std::vector<float> sum(values.size());
  const double encode = NanosecondsEach(count, [&] {
    for (int64_t i = 0; i < count / kBlock; ++i) {
      const float* const block = values.data() + i * kBlock;
      const uint32_t largest = kernels.largest_bits(block, kBlock);
      float scale = 0;
      std::memcpy(&scale, &largest, sizeof scale);
      kernels.encode_levels(block, kBlock, shape, scale, static_cast<uint64_t>(i),
                            codes.data() + i * block_bytes);
    }
  });
  const double decode = NanosecondsEach(count, [&] {
    for (int64_t i = 0; i < count / kBlock; ++i) {
      kernels.decode_levels(codes.data() + i * block_bytes, kBlock, shape, 1.0f,
                            sum.data() + i * kBlock);
    }
  });
  std::printf("levels of %d bits, %-11s: encode %5.2f, decode and add %5.2f ns\n", bits,
              is_uniform ? "uniform" : "exponential", encode, decode);
}

void BenchCodec(std::vector<float> values, const char* spec, bool has_residual) {
  Result<std::unique_ptr<Codec>> codec = MakeCodec(spec);
  if (!codec.ok()) std::abort();
  if (has_residual && (*codec)->residuals() == 0) return;
  const auto count = static_cast<int64_t>(values.size());
  std::vector<float> out(values.size()), residual(values.size(), 0.0f);
  Alone wire;
  CodecPart part;
  part.in = {values.data(), count, DType::kFloat32, {}};
  part.out = {out.data(), count, DType::kFloat32, {}};
  part.residual = {has_residual ? residual.data() : nullptr, count, DType::kFloat32, {}};
  const double all = NanosecondsEach(count, [&] {
    ++part.key;
    if (!(*codec)->Reduce(wire, {&part, 1}).ok()) std::abort();
  });
  part.out.data = nullptr;
  const double encode = NanosecondsEach(count, [&] {
    ++part.key;
    if (!(*codec)->Reduce(wire, {&part, 1}).ok()) std::abort();
  });
  std::printf("%-44s %s: without result %5.2f, whole allreduce of one rank %5.2f ns\n", spec,
              has_residual ? "with residual" : "             ", encode, all);
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) {
  const int64_t count = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 1 << 20;
  const std::vector<float> values = rabit::Normal(count);
  for (int bits : {8, 4, 3, 2}) {
    for (bool is_uniform : {true, false}) rabit::BenchLevels(values, bits, is_uniform);
  }
  std::vector<std::string> specs = {"levels:bits=8", "topk:ratio=0.01,count=exact"};
  for (const rabit::CodecRow& row : rabit::CodecTable()) specs.emplace_back(row.name);
  for (const std::string& spec : specs) {
    for (bool has_residual : {false, true}) rabit::BenchCodec(values, spec.c_str(), has_residual);
  }
  return 0;
}
