// Tensors in the memory of the emulated device, and requests on them.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "testing/emulated_driver.h"

namespace rabit::testing {

// A tensor on device `index`, whose values a kernel writes after what the stream has to do before,
// and requests on it.
class DeviceTensor {
 public:
  DeviceTensor(int index, const std::vector<float>& values, void* stream = nullptr)
      : array_(index, values.size()),
        device_{DeviceKind::kCuda, index},
        stream_(reinterpret_cast<uint64_t>(stream)),
        count_(static_cast<int64_t>(values.size())) {
    array_.Launch(values, stream);
  }

  TensorView view() const { return {array_.data(), count_, DType::kFloat32, device_}; }
  // What the stream sees.
  std::vector<float> Read(void* stream = nullptr) const { return array_.Read(stream); }

  Request As(Kind kind, std::string name) const {
    Request request;
    request.name = std::move(name);
    request.signature.kind = kind;
    request.signature.dtype = DType::kFloat32;
    request.signature.shape = {count_};
    request.signature.device_kind = DeviceKind::kCuda;
    request.device = device_;
    request.input = view();
    request.stream = stream_;
    return request;
  }
  Request InPlace(Kind kind, std::string name) const {
    Request request = As(kind, std::move(name));
    request.output = request.input;
    return request;
  }
  Request To(const DeviceTensor& output, Kind kind, std::string name) const {
    Request request = As(kind, std::move(name));
    request.output = output.view();
    return request;
  }

 private:
  DeviceArray<float> array_;
  const Device device_;
  const uint64_t stream_;
  const int64_t count_;
};

inline Status RunOn(Engine& engine, Request request) {
  Handle handle;
  Status status = engine.Run(std::move(request), handle, After(std::chrono::seconds(60)));
  engine.Release(handle);
  return status;
}

}  // namespace rabit::testing
