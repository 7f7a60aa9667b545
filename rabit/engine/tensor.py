"""TensorView: memory that rabit may use but never owns: NumPy, DLPack, the buffer protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rabit._native import ffi
from rabit.engine.dlpack import read_dlpack
from rabit.errors import InvalidArgument, Unsupported
from rabit.types import CPU, DTYPE_NAMES, DType

__all__ = [
    "TensorView",
    "address_of",
    "as_array",
    "dtype_of",
    "numpy_dtype",
    "reshape",
    "view_input",
    "view_output",
]

# NumPy's names of types, and those of the package ml_dtypes.
_DTYPES: dict[str, DType] = {str(dtype): dtype for dtype in DType}
# NumPy has no bfloat16 and no 8-bit floats: their bits travel in arrays of unsigned integers.
_BITS = {DType.BFLOAT16: "uint16"} | {
    dtype: "uint8" for dtype in DType if str(dtype).startswith("float8")
}
_NUMPY = tuple(np.dtype(_BITS.get(dtype, str(dtype))) for dtype in DType)
# NumPy makes the name of a type anew each time, which takes longer than all else here.
_seen: dict[Any, DType] = {}
_ADDRESS: Any = ffi.typeof("uintptr_t")
_BYTES: Any = ffi.typeof("char[]")


@dataclass(slots=True)
class TensorView:
    """A dense tensor.

    data: its address; 0 only for a tensor without elements.
    keepalive: what owns the memory; a Handle holds it until the operation has finished.
    stream: of the device, 0 the default one: what is on it at submission comes before the operation.
    consumer: gives the stream on which the thread that calls it uses the device; who waits then waits
        on that stream.  None: they wait until the result is there.
    axis_order: how the elements lie in memory; 0: in row-major order.  Otherwise the axes from the outermost
        on, four bits each, lowest first; ranks whose orders differ raise Mismatch.
    """

    data: int
    shape: tuple[int, ...]
    dtype: DType
    device: int = CPU
    device_index: int = 0
    stream: int = 0
    keepalive: Any = field(default=None, repr=False, compare=False)
    consumer: Callable[[], int] | None = field(default=None, repr=False, compare=False)
    axis_order: int = 0

    @property
    def count(self) -> int:
        """Elements."""
        product = 1
        for extent in self.shape:
            product *= extent
        return product

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    @staticmethod
    def bfloat16(bits: Any) -> TensorView:
        """A bfloat16 tensor whose bits lie in the uint16 array `bits`; shares its memory."""
        if not isinstance(bits, np.ndarray) or bits.dtype != np.uint16:
            raise InvalidArgument(
                f"bfloat16 bits come as a NumPy array of uint16, not as {_describe(bits)}. "
                "Use array.view(numpy.uint16)."
            )
        view = (
            view_output(bits, "bfloat16") if bits.flags.writeable else view_input(bits, "bfloat16")
        )
        view.dtype = DType.BFLOAT16
        return view


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that holds `dtype`; unsigned integers for bfloat16 and 8-bit floats."""
    return _NUMPY[dtype]


def dtype_of(dtype: Any, what: object = "tensor") -> DType:
    """The DType of a NumPy type; Unsupported names the ones that exist."""
    seen = _seen.get(dtype)
    if seen is not None:
        return seen
    dtype = np.dtype(dtype)
    if not dtype.isnative:
        raise Unsupported(
            f"{what}: the elements are {dtype.name} in foreign byte order ({dtype.str}), which is "
            "not supported. Convert with array.astype(array.dtype.newbyteorder('='))."
        )
    found = _DTYPES.get(dtype.name)
    if found is None:
        raise Unsupported(
            f"{what}: elements of type {dtype.name} are not supported (supported: {DTYPE_NAMES}). "
            f"{_advice(dtype)}"
        )
    _seen[dtype] = found
    return found


def _advice(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "O":
        return "Use broadcast_object or allgather_object for Python objects."
    return "Convert with array.astype(...)."


def as_array(tensor: Any, what: object = "tensor") -> np.ndarray[Any, Any]:
    """`tensor` as a NumPy array: itself, a view where the memory can be shared, else a copy.

    Takes arrays, objects with the buffer protocol, scalars and nested lists of numbers.
    """
    if isinstance(tensor, np.ndarray):
        _refuse_mask(tensor, what)
        return tensor
    if isinstance(tensor, (list, tuple)):
        _refuse_mask(tensor, what)
    try:
        return np.asarray(tensor)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(
            f"{what}: {_describe(tensor)} cannot be read as an array: {error}. "
            "Pass a NumPy array, or an object with DLPack or the buffer protocol."
        ) from error


def view_input(tensor: Any, what: object = "tensor") -> TensorView:
    """A view of `tensor` for reading; a tensor that is not contiguous is copied first.

    what: the operation and the name, for messages.
    Raises Unsupported for masks, object and other types, byte orders, sparse tensors and devices.
    """
    if isinstance(tensor, TensorView):
        return tensor
    if not isinstance(tensor, np.ndarray) and hasattr(tensor, "__dlpack__"):
        view = _from_dlpack(tensor, what, writes=False)
        if view is not None:
            return view
        tensor = _contiguous_copy(tensor, what)
    array = as_array(tensor, what)
    dtype = dtype_of(array.dtype, what)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return TensorView(address_of(array), array.shape, dtype, keepalive=array)


def view_output(tensor: Any, what: object = "tensor") -> TensorView:
    """A view of `tensor` for writing, which shares its memory.

    Raises InvalidArgument if it is read-only or not contiguous: a copy would lose the result.
    """
    if isinstance(tensor, TensorView):
        return tensor
    if not isinstance(tensor, np.ndarray):
        if hasattr(tensor, "__dlpack__"):
            view = _from_dlpack(tensor, what, writes=True)
            if view is None:
                raise _not_contiguous(what, _describe(tensor))
            return view
        try:
            tensor = np.asarray(memoryview(tensor))
        except TypeError as error:
            raise InvalidArgument(
                f"{what}: {_describe(tensor)} has no memory that can be written in place. "
                "Pass a NumPy array, or an object with DLPack or a writable buffer."
            ) from error
    _refuse_mask(tensor, what)
    dtype = dtype_of(tensor.dtype, what)
    if not tensor.flags.writeable:
        raise InvalidArgument(
            f"{what}: the array is read-only, so the result cannot be written into it. "
            "Pass array.copy(), or use the form without the trailing underscore."
        )
    if not tensor.flags.c_contiguous:
        raise _not_contiguous(what, f"shape {tensor.shape}, strides {tensor.strides}")
    return TensorView(address_of(tensor), tensor.shape, dtype, keepalive=tensor)


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Where the elements of a contiguous array begin."""
    try:  # Half the time of NumPy's own ways.
        return int(ffi.cast(_ADDRESS, ffi.from_buffer(_BYTES, array)))
    except (ValueError, TypeError, BufferError):  # A type that has no buffer.
        return int(array.__array_interface__["data"][0])


def reshape(view: TensorView, shape: tuple[int, ...]) -> TensorView:
    """The same memory with another shape of as many elements."""
    return TensorView(
        view.data,
        shape,
        view.dtype,
        view.device,
        view.device_index,
        view.stream,
        keepalive=view.keepalive,
        consumer=view.consumer,
    )


def _refuse_mask(tensor: Any, what: object) -> None:
    """Raises Unsupported for an array that says that some of its elements do not count, and for lists of such."""
    if isinstance(tensor, (list, tuple)):
        for element in tensor:
            _refuse_mask(element, what)
    elif (
        isinstance(tensor, np.ndarray)
        and type(tensor) is not np.ndarray
        and hasattr(tensor, "mask")
    ):
        raise Unsupported(
            f"{what}: {_describe(tensor)} has a mask, which does not travel, so the elements under it would count. "
            "Pass tensor.filled(0), or the data and the mask as two arrays."
        )


def _not_contiguous(what: object, found: str) -> InvalidArgument:
    return InvalidArgument(
        f"{what}: the output is not contiguous in row-major order ({found}), so the result cannot "
        "be written into it. Pass a contiguous tensor, or use the form without the trailing "
        "underscore."
    )


def _from_dlpack(tensor: Any, what: object, writes: bool) -> TensorView | None:
    """None when it is not contiguous."""
    found = read_dlpack(tensor, what, writes)
    if found is None:
        return None
    return TensorView(
        found.address,
        found.shape,
        found.dtype,
        found.device,
        found.device_index,
        found.stream,
        keepalive=found.owner,
    )


def _contiguous_copy(tensor: Any, what: object) -> Any:
    contiguous = getattr(tensor, "contiguous", None)
    return contiguous() if callable(contiguous) else as_array(tensor, what).copy()


def _describe(tensor: Any) -> str:
    kind = type(tensor)
    return f"{kind.__module__}.{kind.__qualname__}"
