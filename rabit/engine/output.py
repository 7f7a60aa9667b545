"""What a finished operation has put into the engine's own memory: as an array, or as a view."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from rabit._native import address_of_pointer, check, ffi, last_error
from rabit.engine.tensor import TensorView, numpy_dtype
from rabit.types import DType

if TYPE_CHECKING:
    from rabit.engine.native_engine import NativeEngine

__all__ = ["output_array", "output_view", "read_output"]


class _Memory:
    """Memory of the engine, for NumPy; keeps its owner alive."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(
        self, owner: object, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "typestr": dtype.str,
        }


def output_array(native: NativeEngine, value: int, owner: object) -> np.ndarray[Any, Any] | None:
    """The output of handle `value` over the engine's memory, which `owner` keeps; None if it has none."""
    native.live_pointer()  # It knows a forked child.
    if native.calls is None:
        tensor, shape, _ = read_output(native, value)
        address, number = address_of_pointer(tensor.data), tensor.dtype
    else:
        found = native.calls.output(value)
        if type(found) is int:
            raise last_error(native.library, -found)
        address, number, shape = found
    dtype = _dtype_of(number)
    if address == 0:
        return np.empty(shape, dtype) if 0 in shape else None
    return np.asarray(_Memory(owner, address, shape, dtype))


@functools.cache
def _dtype_of(number: int) -> np.dtype[Any]:
    return numpy_dtype(DType(number))


def output_view(native: NativeEngine, value: int, owner: object) -> TensorView:
    """The same as a view, also of memory of a device."""
    tensor, shape, _ = read_output(native, value)
    return TensorView(
        address_of_pointer(tensor.data),
        shape,
        DType(tensor.dtype),
        tensor.device_kind,
        tensor.device_index,
        keepalive=owner,
    )


def read_output(
    native: NativeEngine, value: int, with_splits: bool = False
) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """The output of handle `value` in its C form, its shape, and the rows that came from each rank."""
    tensor = ffi.new("rabit_tensor*")
    shape = ffi.new("int64_t[8]")
    splits = ffi.new("int64_t[]", native.size) if with_splits else ffi.NULL
    if with_splits:
        for index in range(native.size):
            splits[index] = -1
    pointer = native.live_pointer()
    check(native.library, native.library.rabit_output(pointer, value, tensor, shape, splits))
    rows = tuple(ffi.unpack(splits, native.size)) if with_splits else ()
    return (
        tensor[0],
        tuple(ffi.unpack(shape, tensor.ndim)) if tensor.ndim else (),
        tuple(row for row in rows if row >= 0),
    )
