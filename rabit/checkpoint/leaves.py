"""What a tensor is to a checkpoint: an element type, a shape, and bytes.

Adapters turn arrays of a framework into leaves, and what was read back into arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rabit.errors import Unsupported

__all__ = [
    "ELEMENT_BYTES",
    "NUMPY_ADAPTER",
    "Adapter",
    "Bytes",
    "Leaf",
    "NumpyAdapter",
    "Part",
    "Stored",
    "even_rows",
]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# Names of the element types in files of safetensors -> bytes of one.
ELEMENT_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
_NUMPY_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "bfloat16": "BF16", "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64",
    "int64": "I64", "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_NUMPY_TYPES = {short: name for name, short in _NUMPY_NAMES.items()}
_OF_ML_DTYPES = ("BF16", "F8_E4M3", "F8_E5M2")


@dataclass(frozen=True)
class Part:
    """This rank's rows of an array that is divided over the ranks along its first dimension.

    value: rows `start` to `start + len(value)` of an array of `length` rows; the parts of all ranks
    cover it, and do not overlap.
    """

    value: Any
    start: int
    length: int


@dataclass(frozen=True)
class Leaf:
    """A tensor of this process.  `read(first, last)` gives the bytes of these elements."""

    dtype: str  # as in ELEMENT_BYTES
    shape: tuple[int, ...]
    adapter: str
    read: Callable[[int, int], Bytes]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Stored:
    """A tensor as it was read: its bytes, in memory of its own."""

    dtype: str
    shape: tuple[int, ...]
    data: Bytes


class Adapter(Protocol):
    """Tensors of one framework.  `name` is stored with each of its tensors."""

    name: str

    def leaf(self, value: Any, path: str) -> Leaf | None:
        """`value` as a leaf; None if it is not a tensor of this framework."""

    def value(self, stored: Stored) -> Any:
        """A tensor with the content of `stored`."""


class NumpyAdapter:
    """Arrays and scalars of NumPy."""

    name = "numpy"

    def leaf(self, value: Any, path: str) -> Leaf | None:
        if not isinstance(value, (np.ndarray, np.generic)):
            return None
        if isinstance(value, np.ma.MaskedArray):
            raise Unsupported(
                f"the state has a masked array at '{path}', whose mask would be lost. Put in its .data and .mask."
            )
        array = np.asarray(value)
        short = _NUMPY_NAMES.get(array.dtype.name)
        if short is None or not array.dtype.isnative:
            raise Unsupported(
                f"the state has an array of {array.dtype} at '{path}', which safetensors files cannot "
                f"hold. Convert it to one of {', '.join(_NUMPY_NAMES)}."
            )

        def read(first: int, last: int) -> Bytes:
            flat = np.ascontiguousarray(array).reshape(-1)
            return flat[first:last].view(np.uint8)

        return Leaf(short, array.shape, "scalar" if isinstance(value, np.generic) else "numpy", read)

    def value(self, stored: Stored) -> Any:
        name = _NUMPY_TYPES[stored.dtype]
        if stored.dtype not in _OF_ML_DTYPES:
            return stored.data.view(name).reshape(stored.shape)
        try:
            import ml_dtypes
        except ImportError as error:
            raise Unsupported(
                f"the checkpoint has a tensor of {name}, which NumPy alone does not know. Install "
                "ml_dtypes, or load it with rabit_torch."
            ) from error
        return stored.data.view(getattr(ml_dtypes, name)).reshape(stored.shape)


NUMPY_ADAPTER = NumpyAdapter()


def even_rows(length: int, rank: int, size: int) -> tuple[int, int]:
    """The rows of `rank` where `length` rows are divided evenly; the first ranks have one more."""
    each, more = divmod(length, size)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)
