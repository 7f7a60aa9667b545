"""rabit: distributed data-parallel training."""

from rabit._config import Config
from rabit._engine import Engine
from rabit._errors import (
    Aborted,
    Internal,
    InvalidArgument,
    Mismatch,
    NotInitialized,
    PeerLost,
    RabitError,
    ResourceExhausted,
    TimedOut,
    Unsupported,
)
from rabit._handle import GroupHandle, Handle
from rabit._request import Batch, Request
from rabit._tensor import TensorView
from rabit._types import (
    CPU,
    CUDA,
    Average,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    DType,
    Kind,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
)
from rabit._version import __version__

__all__ = [
    "CPU",
    "CUDA",
    "Aborted",
    "Average",
    "Batch",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Config",
    "DType",
    "Engine",
    "GroupHandle",
    "Handle",
    "Internal",
    "InvalidArgument",
    "Kind",
    "Max",
    "Min",
    "Mismatch",
    "NotInitialized",
    "PeerLost",
    "Product",
    "RabitError",
    "ReduceOp",
    "Request",
    "ResourceExhausted",
    "Sum",
    "TensorView",
    "TimedOut",
    "Unsupported",
    "__version__",
]
