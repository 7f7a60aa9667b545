// The class of an error, as Python names it, for runtimes that get an error as one text.
#pragma once

#include <cstdint>

namespace rabit {

// code: a rabit_code other than RABIT_OK.
const char* ErrorClass(int32_t code);

}  // namespace rabit
