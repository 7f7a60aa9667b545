// What of ours NCCL has, and how it calls it.
#pragma once

#include <optional>

#include "backend/nccl/nccl_functions.h"
#include "base/dtype.h"

namespace rabit {

inline std::optional<nccl::DataType> NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
      return nccl::kUint8;
    case DType::kInt8:
      return nccl::kInt8;
    case DType::kInt32:
      return nccl::kInt32;
    case DType::kInt64:
      return nccl::kInt64;
    case DType::kFloat16:
      return nccl::kFloat16;
    case DType::kFloat32:
      return nccl::kFloat32;
    case DType::kFloat64:
      return nccl::kFloat64;
    case DType::kBfloat16:
      return nccl::kBfloat16;
    default:
      return std::nullopt;  // 16-bit integers, bool, complex numbers and what is not combined
  }
}

inline std::optional<nccl::RedOp> NcclOpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return nccl::kAvg;
    case ReduceOp::kSum:
      return nccl::kSum;
    case ReduceOp::kMin:
      return nccl::kMin;
    case ReduceOp::kMax:
      return nccl::kMax;
    case ReduceOp::kProduct:
      return nccl::kProd;
    default:
      return std::nullopt;
  }
}

}  // namespace rabit
