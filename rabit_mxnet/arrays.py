"""MXNet arrays seen as memory that the engine may use, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from rabit import DType, InvalidArgument, TensorView, Unsupported
from rabit_mxnet.library import address, wait_to_write
from rabit_mxnet.loaded import mx

_DTYPES: dict[str, DType] = {
    "uint8": DType.UINT8,
    "int8": DType.INT8,
    "int32": DType.INT32,
    "int64": DType.INT64,
    "float16": DType.FLOAT16,
    "float32": DType.FLOAT32,
    "float64": DType.FLOAT64,
    "bool": DType.BOOL,
}


def check(tensor: Any, what: str) -> Any:
    """Returns `tensor` if the engine can work on it; raises with the reason otherwise."""
    if not isinstance(tensor, mx.nd.NDArray):
        raise InvalidArgument(
            f"{what} is {type(tensor).__name__}, not an MXNet NDArray. Pass an array, or use "
            "broadcast_object/allgather_object for other objects."
        )
    if tensor.stype != "default":
        raise Unsupported(
            f"{what} has storage type '{tensor.stype}', and collectives carry dense arrays only. "
            "Call .tostype('default') first, or build the layer with sparse_grad=False."
        )
    if tensor.context.device_type == "gpu":
        raise Unsupported(
            f"{what} is on {tensor.context}; the backends of this build move CPU memory only. "
            "Call .as_in_context(mx.cpu()) first."
        )
    dtype_of(tensor, what)
    return tensor


def dtype_of(tensor: Any, what: str) -> DType:
    """Returns the engine's name of an array's element type; raises Unsupported for others."""
    name = np.dtype(tensor.dtype).name
    found = _DTYPES.get(name)
    if found is None:
        raise Unsupported(
            f"{what} has elements of type {name}, which MXNet and the engine do not share (known: "
            f"{', '.join(_DTYPES)}). Convert it with .astype(...)."
        )
    return found


def read_view(tensor: Any, what: str) -> TensorView:
    """A view for reading.  Waits until MXNet has computed the array."""
    tensor.wait_to_read()
    return view(tensor, what)


def write_view(tensor: Any, what: str) -> TensorView:
    """A view for writing.  Waits until MXNet neither writes nor reads the array."""
    wait_to_write(tensor)
    return view(tensor, what)


def symbolic_view(tensor: Any, what: str) -> TensorView:
    """Shape and type alone: MXNet's engine knows the address when the array exists."""
    return TensorView(0, tuple(tensor.shape), dtype_of(tensor, what))


def view(tensor: Any, what: str) -> TensorView:
    """A view of memory that MXNet does not use at the moment."""
    return TensorView(
        address(tensor), tuple(tensor.shape), dtype_of(tensor, what), keepalive=tensor
    )


def may_be_blocked(tensor: Any) -> bool:
    """True if oneDNN may have given the array its blocked layout, as it does to convolutions'."""
    return np.dtype(tensor.dtype) == np.float32 and bool(tensor.ndim > 2)


def private_copy(tensor: Any) -> Any:
    """A new array of the same values in row-major order; MXNet computes it when it can.

    A plain copy would keep a blocked layout; an arithmetic operator gives row-major order, and
    multiplying by one changes no value.
    """
    with mx.autograd.pause():
        return tensor * 1 if may_be_blocked(tensor) else tensor.copy()


def array_like(values: np.ndarray[Any, Any], tensor: Any) -> Any:
    """`values` as a new array of the family (mx.nd or mx.np) and type of `tensor`."""
    is_numpy_family = isinstance(tensor, mx.np.ndarray)
    make = mx.np.array if is_numpy_family else mx.nd.array
    return make(values, dtype=tensor.dtype, ctx=tensor.context)


def empty_like(tensor: Any, shape: tuple[int, ...]) -> Any:
    """A new array of this shape, of the family and type of `tensor`."""
    make = mx.np.empty if isinstance(tensor, mx.np.ndarray) else mx.nd.empty
    return make(shape, dtype=tensor.dtype, ctx=tensor.context)
