"""A norm whose bits do not depend on how the elements are divided among ranks.

Squares of a row are added in float64, always in the same order. Rows are then added exactly, as integers,
which no order changes; the sum is rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from rabit.sharding.layout import BLOCK

__all__ = ["SquareSum"]

_MANTISSA_BITS = 53
_HALF_BITS = 27
# A float64 is m * 2**(e - 53) with e between these: each has its own bin, and bins hold integers.
_EXPONENT_MIN, _EXPONENT_MAX = -1073, 1024
_BINS = _EXPONENT_MAX - _EXPONENT_MIN + 1
# The exact sum is an integer of this many digits of 32 bits; 31 more bits take what 2**31 ranks add up.
_DIGIT_BITS = 32
_DIGITS = (_BINS + _MANTISSA_BITS + 64) // _DIGIT_BITS + 1


class SquareSum:
    """The exact sum of rounded row sums of squares. Not thread-safe."""

    def __init__(self) -> None:
        self._bins = np.zeros((2, _BINS), np.int64)
        self.is_finite = True

    def add(self, values: np.ndarray[Any, Any], block: int = BLOCK) -> None:
        """Adds the squares of floating-point `values`; their first element begins a row.

        A part of a flat that begins with a row gives the same as those elements of the whole flat.
        """
        flat = values.reshape(-1)
        whole = len(flat) // block * block
        rows = flat[:whole].astype(np.float64).reshape(-1, block)
        self._add_rows(np.square(rows, out=rows).sum(axis=1))
        if whole < len(flat):
            last = np.zeros(block)
            last[: len(flat) - whole] = flat[whole:]
            self._add_rows(np.square(last, out=last)[None].sum(axis=1))

    def digits(self) -> np.ndarray[Any, Any]:
        """int64 words whose sums over ranks are the words of the sum over ranks; the last is not finite > 0."""
        words = np.zeros(_DIGITS + 1, np.int64)
        whole = self._integer()
        for place in range(_DIGITS):
            words[place] = whole & ((1 << _DIGIT_BITS) - 1)
            whole >>= _DIGIT_BITS
        words[-1] = not self.is_finite
        return words

    @staticmethod
    def root(digits: Iterable[int]) -> float:
        """The square root of what `digits` stand for, rounded to float32; nan if something was not finite."""
        *words, not_finite = (int(word) for word in digits)
        if not_finite:
            return math.nan
        whole = sum(word << (_DIGIT_BITS * place) for place, word in enumerate(words))
        try:
            total = float(Fraction(whole) * Fraction(2) ** (_EXPONENT_MIN - _MANTISSA_BITS))
        except OverflowError:
            return math.inf
        with np.errstate(over="ignore"):
            return float(np.float32(math.sqrt(total)))

    def norm(
        self, add_over_ranks: Callable[[np.ndarray[Any, Any]], Iterable[int]] | None = None
    ) -> float:
        """The norm, of all ranks' elements if `add_over_ranks` sums int64 words over ranks; a float32 value."""
        digits = self.digits()
        return self.root(digits if add_over_ranks is None else add_over_ranks(digits))

    def _add_rows(self, sums: np.ndarray[Any, Any]) -> None:
        if not np.isfinite(sums).all():
            self.is_finite = False
            return
        fractions, exponents = np.frexp(sums)
        mantissas = np.ldexp(fractions, _MANTISSA_BITS).astype(np.int64)
        places = np.where(mantissas == 0, 0, exponents - _EXPONENT_MIN)
        # Halves of 27 bits: 2**36 rows fit into a bin.
        np.add.at(self._bins[0], places, mantissas & ((1 << _HALF_BITS) - 1))
        np.add.at(self._bins[1], places, mantissas >> _HALF_BITS)

    def _integer(self) -> int:
        total = 0
        for half, shift in ((0, 0), (1, _HALF_BITS)):
            for place in np.flatnonzero(self._bins[half]):
                total += int(self._bins[half, place]) << (int(place) + shift)
        return total
