"""ThinMatrix: a matrix between two thin ones, for methods of low rank."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rabit.engine.thin_products import thin_products

from .ranks import Ranks
from .strategy import Array

__all__ = ["ThinMatrix", "thin_matrix"]


class ThinMatrix(Protocol):
    """x + factor·residual as a matrix of n by m, and its products with thin ones of r columns.

    left: its product with the right one that it was made with, n by r.
    rest: what `expand` leaves of it.
    """

    left: Array
    rest: Array

    def orthonormal(self, left: Array) -> Array:
        """A left one with orthonormal columns that span the same, and more where it has less rank."""

    def transposed_times(self, left: Array) -> Array:
        """A right one, m by r."""

    def expand(self, left: Array, mean: Array, mine: Array) -> Array:
        """left·meanᵀ; left·mineᵀ is subtracted from the rest."""


def thin_matrix(
    x: Array, residual: Array | None, factor: float, right: Array, ranks: Ranks
) -> ThinMatrix:
    """In native code for float32, in NumPy for other types.  With a residual x may be written to."""
    matrix = x.reshape(len(x), -1)
    if residual is None:
        rest, result = None, None
    else:
        rest, result = residual.reshape(matrix.shape), matrix if x is ranks.result else None
    if x.dtype == np.float32:
        return _Native(matrix, rest, factor, right, result, ranks)
    return _InNumpy(matrix, rest, factor, right)


class _InNumpy:
    def __init__(self, x: Array, residual: Array | None, factor: float, right: Array) -> None:
        self.rest = x if residual is None else x + residual * x.dtype.type(factor)
        self.left: Array = self.rest @ right

    def orthonormal(self, left: Array) -> Array:
        found, _ = np.linalg.qr(left)
        return found

    def transposed_times(self, left: Array) -> Array:
        found: Array = self.rest.T @ left
        return found

    def expand(self, left: Array, mean: Array, mine: Array) -> Array:
        self.rest = self.rest - left @ mine.T
        value: Array = left @ mean.T
        return value


class _Native:
    """Two loops over what the first cache does not hold would cost as much as all of this."""

    def __init__(
        self,
        x: Array,
        residual: Array | None,
        factor: float,
        right: Array,
        result: Array | None,
        ranks: Ranks,
    ) -> None:
        self._products = thin_products(ranks.engine.config.library)
        self.rest = ranks.empty(x.shape, x.dtype)
        if result is None or not result.flags.c_contiguous:
            result = ranks.empty(x.shape, x.dtype)
        self._result = result
        x = np.ascontiguousarray(x)
        residual = residual if residual is None else np.ascontiguousarray(residual)
        right = np.ascontiguousarray(right.T)
        self.left = self._products.times(x, residual, factor, right, self.rest)

    def orthonormal(self, left: Array) -> Array:
        found: Array = left.copy()
        self._products.orthonormalize(found)
        return found

    def transposed_times(self, left: Array) -> Array:
        found: Array = self._products.transposed_times(self.rest, left).T
        return found

    def expand(self, left: Array, mean: Array, mine: Array) -> Array:
        right, own = np.ascontiguousarray(mean.T), np.ascontiguousarray(mine.T)
        self._products.expand(left, right, own, self._result, self.rest)
        return self._result
