// Prints the memory traffic (GB/s: inputs read plus output written) of every kernel set.
// Usage: bench_reduce [bytes per input, default 64 MiB]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "arithmetic/reduce.h"

namespace rabit {
namespace {

template <class Body>
double MedianSeconds(int repeats, Body body) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

void Bench(size_t bytes, int input_count) {
  std::vector<std::vector<std::byte>> buffers(static_cast<size_t>(input_count) + 1,
                                              std::vector<std::byte>(bytes, std::byte{0x01}));
  std::vector<const std::byte*> inputs;
  for (int i = 0; i < input_count; ++i) inputs.push_back(buffers[static_cast<size_t>(i)].data());
  std::byte* out = buffers.back().data();
  const int repeats = bytes > (1 << 20) ? 9 : 501;
  const double copy = MedianSeconds(repeats, [&] { std::memcpy(out, inputs[0], bytes); });
  std::printf("%10zu bytes, %d inputs: memcpy %6.1f GB/s\n", bytes, input_count,
              2e-9 * static_cast<double>(bytes) / copy);
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16,
                      DType::kInt8, DType::kInt32}) {
    std::printf("  %-9s", std::string(Name(dtype)).c_str());
    for (KernelSet set : AvailableKernelSets()) {
      const double seconds = MedianSeconds(repeats, [&] {
        ReduceWith(set, ReduceOp::kSum, dtype, inputs, out,
                   static_cast<int64_t>(bytes / SizeOf(dtype)));
      });
      std::printf("  %s %6.1f", std::string(Name(set)).c_str(),
                  1e-9 * static_cast<double>(bytes) * (input_count + 1) / seconds);
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) {
  const size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{64} << 20;
  for (int inputs : {2, 4}) {
    rabit::Bench(bytes, inputs);
    rabit::Bench(256 << 10, inputs);
  }
  return 0;
}
