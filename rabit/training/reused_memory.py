"""ReusedMemory: large arrays over memory that earlier ones have given back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["ReusedMemory"]

Array = np.ndarray[Any, Any]

_LEAST_BYTES = 64 * 1024  # Smaller ones the allocator has at hand.


class ReusedMemory:
    """What `empty` gives comes back by itself when no one refers to it any more.

    Fresh memory costs as much as the loops over it, since the kernel clears every page, and the
    allocator returns large blocks at once.  Of each size as many blocks are kept as were in use at the
    same time.  Thread-safe.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """An array in row-major order; its elements are what an earlier one has left there."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size < _LEAST_BYTES:
            return np.empty(shape, kind)
        free = self._free.setdefault(size, [])
        try:
            block = free.pop()
        except IndexError:
            block = np.empty(size, np.uint8)
        return np.asarray(_Loan(block, free, tuple(shape), kind))


class _Loan:
    """The base of an array and of all that show its memory: gone with the last of them."""

    def __init__(
        self, block: Array, free: list[Array], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._block, self._free = block, free
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (block.ctypes.data, False),
        }

    def __del__(self) -> None:
        self._free.append(self._block)
