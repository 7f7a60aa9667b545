"""Products of float32 matrices with thin ones, in native code, on the caller's thread."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from rabit._native import check, ffi, load

__all__ = ["ThinProducts", "thin_products"]

Array = np.ndarray[Any, Any]


class ThinProducts:
    """Arrays are float32 in row-major order; right thin ones are transposed.  Thread-safe."""

    def __init__(self, library_path: str) -> None:
        self._library = load(library_path)

    def times(
        self, x: Array, residual: Array | None, factor: float, right: Array, whole: Array
    ) -> Array:
        """Writes x + factor·residual, None: x, to `whole`; returns its product with `right`."""
        rank, (rows, columns) = len(right), x.shape
        left = np.empty((rows, rank), np.float32)
        code = self._library.rabit_thin_times(
            rows,
            columns,
            rank,
            _floats(x),
            ffi.NULL if residual is None else _floats(residual),
            factor,
            _floats(right),
            _floats(whole),
            _floats(left),
        )
        check(self._library, code)
        return left

    def orthonormalize(self, left: Array) -> None:
        """Makes the columns orthonormal, in place."""
        check(self._library, self._library.rabit_thin_orthonormal(*left.shape, _floats(left)))

    def transposed_times(self, whole: Array, left: Array) -> Array:
        """The product of the transposed `whole` with `left`, a right one."""
        right = np.empty((left.shape[1], whole.shape[1]), np.float32)
        shape = *whole.shape, len(right)
        call = self._library.rabit_thin_transposed_times
        check(self._library, call(*shape, _floats(whole), _floats(left), _floats(right)))
        return right

    def expand(self, left: Array, mean: Array, mine: Array, value: Array, whole: Array) -> None:
        """value = left·mean;  whole = whole - left·mine."""
        shape = *whole.shape, len(mean)
        arrays = map(_floats, (left, mean, mine, value, whole))
        check(self._library, self._library.rabit_thin_expand(*shape, *arrays))


@functools.cache
def thin_products(library_path: str) -> ThinProducts:
    """Those of the library at this path; empty: the default one.  Looking for it takes longer than a product."""
    return ThinProducts(library_path)


def _floats(array: Array) -> Any:
    return ffi.from_buffer("float[]", array)
