// The emulated CUDA driver, opened as the real one would be, and tensors in its memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/device/cuda_driver.h"
#include "base/dynamic_library.h"
#include "testing/emulated_cuda/emulated_cuda.h"

namespace rabit::testing {

// What the emulation offers to tests; one for the process.
struct Emulation {
#define RABIT_EMULATED_MEMBER(name, ...) emulated_cuda::name##_type* name = nullptr;
  RABIT_EMULATED_CUDA_FUNCTIONS(RABIT_EMULATED_MEMBER)
#undef RABIT_EMULATED_MEMBER

  emulated_cuda::Counts counts() const {
    emulated_cuda::Counts counts;
    rabit_emulated_counts(&counts);
    return counts;
  }
};

inline const Emulation& emulation() {
  static const Emulation found = [] {
    const std::vector<std::string> names = {RABIT_TEST_CUDA};
    const Result<DynamicLibrary> library = DynamicLibrary::Open(names, "build rabit_test_cuda");
    RABIT_CHECK(library.ok(), library.status().message());
    Emulation all;
#define RABIT_EMULATED_FIND(name, ...) \
  RABIT_CHECK(library->Find(#name, all.name).ok(), "the emulation has no " #name);
    RABIT_EMULATED_CUDA_FUNCTIONS(RABIT_EMULATED_FIND)
#undef RABIT_EMULATED_FIND
    return all;
  }();
  return found;
}

inline std::shared_ptr<DeviceDriver> OpenEmulatedDriver() {
  Result<std::shared_ptr<DeviceDriver>> driver = LoadCudaDriver(RABIT_TEST_CUDA);
  RABIT_CHECK(driver.ok(), driver.status().message());
  return *driver;
}

// Delays and failures of one test; calls them off at its end.
class EmulatedTrouble {
 public:
  explicit EmulatedTrouble(uint64_t seed, uint32_t delay_us_max = 0) {
    emulation().rabit_emulated_delays(seed, delay_us_max);
  }
  EmulatedTrouble(const EmulatedTrouble&) = delete;
  ~EmulatedTrouble() {
    emulation().rabit_emulated_delays(1, 0);
    emulation().rabit_emulated_capture(cuda::kCaptureStatusNone);
    emulation().rabit_emulated_devices(2);
    emulation().rabit_emulated_hold(0);
    for (const std::string& function : functions_) {
      emulation().rabit_emulated_fail(function.c_str(), 0, cuda::kSuccess);
    }
  }
  void Fail(const std::string& function, uint64_t skip, cuda::Result error) {
    functions_.push_back(function);
    emulation().rabit_emulated_fail(function.c_str(), skip, error);
  }

 private:
  std::vector<std::string> functions_;
};

// A kernel that ends when it is told to.
class DeviceGate {
 public:
  DeviceGate() = default;
  DeviceGate(const DeviceGate&) = delete;
  ~DeviceGate() { Open(); }

  // What is put on the stream afterwards waits.
  void Close(int device, void* stream) {
    auto* const closed = new std::shared_ptr<std::atomic<bool>>(may_end_);
    emulation().rabit_emulated_launch(
        device, static_cast<cuda::Stream>(stream),
        [](void* argument) {
          const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> mine(
              static_cast<std::shared_ptr<std::atomic<bool>>*>(argument));
          (*mine)->wait(false);
        },
        closed);
  }
  void Open() {
    may_end_->store(true);
    may_end_->notify_all();
  }

 private:
  const std::shared_ptr<std::atomic<bool>> may_end_ = std::make_shared<std::atomic<bool>>(false);
};

// Values in the memory of a device, which the host may not touch.
template <class T>
class DeviceArray {
 public:
  DeviceArray(int device, size_t count)
      : device_(device),
        count_(count),
        memory_(emulation().rabit_emulated_allocate(device, (count + 1) * sizeof(T))) {
    RABIT_CHECK(memory_ != 0, "no memory of a device");
  }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() {
    emulation().rabit_emulated_finish(device_, nullptr);  // what may still write there
    emulation().rabit_emulated_free(memory_);
  }

  void* data() const { return reinterpret_cast<void*>(memory_); }
  size_t count() const { return count_; }

  // Puts the write on a stream, as a kernel that computes them.
  void Launch(std::vector<T> values, void* stream = nullptr) const {
    auto* const kernel = new std::function<void()>(
        [to = emulation().rabit_emulated_inside(memory_), values = std::move(values)] {
          std::copy(values.begin(), values.end(), static_cast<T*>(to));
        });
    emulation().rabit_emulated_launch(device_, static_cast<cuda::Stream>(stream), Run, kernel);
  }
  // What a stream sees when it comes to it.
  std::vector<T> Read(void* stream = nullptr) const {
    std::vector<T> values(count_);
    auto* const kernel =
        new std::function<void()>([from = emulation().rabit_emulated_inside(memory_), &values] {
          std::copy_n(static_cast<const T*>(from), values.size(), values.begin());
        });
    emulation().rabit_emulated_launch(device_, static_cast<cuda::Stream>(stream), Run, kernel);
    emulation().rabit_emulated_finish(device_, static_cast<cuda::Stream>(stream));
    return values;
  }

 private:
  static void Run(void* argument) {
    const std::unique_ptr<std::function<void()>> kernel(
        static_cast<std::function<void()>*>(argument));
    (*kernel)();
  }

  const int device_;
  const size_t count_;
  const cuda::Pointer memory_;
};

}  // namespace rabit::testing
