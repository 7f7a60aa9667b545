"""Chunks of float32 arrays as waves, in native code, on the caller's thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from rabit._native import check, ffi, load

__all__ = ["Waves"]

Array = np.ndarray[Any, Any]


class Waves:
    """Arrays are in row-major order, float32 and places uint16.  Thread-safe.

    basis: orthonormal, a wave in each row; transposed: the same in columns.
    """

    def __init__(self, library_path: str, basis: Array, transposed: Array) -> None:
        self._library = load(library_path)
        self._basis, self._transposed = _floats(basis), _floats(transposed)

    def split(self, x: Array, places: Array, values: Array, sent: Array) -> None:
        """Writes the strongest waves of each row, as many as `places` has columns, and what they amount to."""
        call = self._library.rabit_waves_split
        found = _places(places), _floats(values), _floats(sent)
        code = call(*x.shape, places.shape[1], self._basis, self._transposed, _floats(x), *found)
        check(self._library, code)

    def mean(self, places: Array, values: Array, signs: bool, out: Array) -> None:
        """Writes the mean of each wave over the ranks, the first axis, that have sent it, or its signs."""
        call, (ranks, _, kept) = self._library.rabit_waves_mean, places.shape
        found = _places(places), _floats(values), signs, _floats(out)
        check(self._library, call(*out.shape, kept, ranks, self._basis, *found))


def _floats(array: Array) -> Any:
    return ffi.from_buffer("float[]", array)


def _places(array: Array) -> Any:
    return ffi.from_buffer("uint16_t[]", array)
