#include "abi/error_class.h"

#include "include/rabit_abi.h"

namespace rabit {

const char* ErrorClass(int32_t code) {
  switch (code) {
    case RABIT_INVALID_ARGUMENT:
      return "InvalidArgument";
    case RABIT_MISMATCH:
      return "Mismatch";
    case RABIT_UNSUPPORTED:
      return "Unsupported";
    case RABIT_PEER_LOST:
      return "PeerLost";
    case RABIT_TIMED_OUT:
      return "TimedOut";
    case RABIT_ABORTED:
      return "Aborted";
    case RABIT_RESOURCE_EXHAUSTED:
      return "ResourceExhausted";
    default:
      return "Internal";
  }
}

}  // namespace rabit
