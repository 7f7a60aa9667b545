// NcclRows: what of a job NCCL does.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/kind.h"
#include "base/work.h"

namespace rabit {

struct NcclRows {
  BackendId backend = -1;   // what users call 'nccl'
  int32_t executor = -1;    // place in EngineParts::backends
  int32_t hierarchy = -1;   // NCCL inside the hosts, and another between; -1: there is none
  bool is_default = false;  // of tensors on a GPU whose operations name no backend

  // Tensors on a GPU, of NCCL's types and operations.  Its minimum and maximum of floats lose NaN,
  // its average of integers rounds in another way, and only sums of floats are scaled.
  bool Runs(const Work& work) const {
    const bool is_there = work.device_kind == DeviceKind::kCuda && work.codec.empty();
    if (!is_there || !TraitsOf(work.kind).moves_data) return false;
    return !TraitsOf(work.kind).reduces || Reduces(work);
  }

 private:
  static bool Reduces(const Work& work) {
    if (work.dtype == DType::kUint16 || work.dtype == DType::kInt16 || work.dtype == DType::kBool ||
        static_cast<int>(work.dtype) >= kKernelDTypeCount) {
      return false;
    }
    const double factor = work.prescale * work.postscale;
    const bool is_float = IsFloat(work.dtype);
    switch (work.op) {
      case ReduceOp::kSum:
        return factor == 1.0 || (is_float && IsRepresentable(work.dtype, factor));
      case ReduceOp::kAverage:
        return is_float && (factor == 1.0 || IsRepresentable(work.dtype, factor));
      case ReduceOp::kMin:
      case ReduceOp::kMax:
        return factor == 1.0 && !is_float;
      case ReduceOp::kProduct:
        return factor == 1.0;
      default:
        return false;
    }
  }
  // NCCL takes the factor as a value of the type.  Below these a share of it for each rank would
  // lose bits, above them it would overflow.
  static bool IsRepresentable(DType dtype, double factor) {
    const double magnitude = std::fabs(factor);
    if (dtype == DType::kFloat16) return magnitude >= 0x1p-4 && magnitude <= 0x1p15;
    return magnitude >= 0x1p-100 && magnitude <= 0x1p100;
  }
};

}  // namespace rabit
