// The CUDA driver, looked up at run time.
#pragma once

#include <memory>
#include <string>

#include "base/device/device.h"
#include "base/result.h"

namespace rabit {

// Loads `library`, or the driver's usual name if it is empty, and starts it.  kUnsupported says
// what is missing: the driver, one of its functions, or a device.  A process that forks afterwards
// cannot use it in the child.
Result<std::shared_ptr<DeviceDriver>> LoadCudaDriver(const std::string& library = {});

}  // namespace rabit
