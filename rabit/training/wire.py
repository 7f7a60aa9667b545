"""Wire: an exchange of one round that the engine does by itself, and what it takes in addition to the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rabit.compression import Compression, CompressionCodec
from rabit.types import ReduceOp

from .state import leaf

__all__ = ["Operands", "Residual", "Wire", "change_of_unit", "seed_of"]

Array = np.ndarray[Any, Any]


@dataclass
class Residual:
    """The state of error feedback.

    residual: what was not sent, in units of the parameter's change per `unit`.
    of_sums: what this rank's sums lost when they were encoded again, where the engine keeps that; of the
    sum over the ranks, not of the mean.  0 before the first step.
    inner: the state of the exchange that it goes around.
    """

    residual: Array = leaf(scope="local", elastic="mean")
    unit: float = 1.0
    inner: Any = None
    of_sums: Any = leaf(0.0, scope="local", elastic="mean")

    def factor(self, unit: float, decay: float) -> float:
        """By what the residual is multiplied so that it is `decay` of itself, in `unit`."""
        return decay * change_of_unit(self.unit, unit)

    def in_unit(self, unit: float, decay: float, count: int) -> Array:
        """`decay` of what is kept, in `unit` and in a new array: the residual, and with count 2 that of sums."""
        found = np.empty((count, *self.residual.shape), self.residual.dtype)
        factor = found.dtype.type(self.factor(unit, decay))
        for row, array in zip(found, (self.residual, self.of_sums), strict=False):
            np.multiply(array, factor, out=row)
        return found


def change_of_unit(before: float, now: float) -> float:
    """By what a residual in unit `before` is multiplied to be in `now`.

    0 at a learning rate of zero, as in the first step of a warm-up: nothing is applied, so nothing of the
    residual is sent, and its owner leaves it as it is.
    """
    return before / now if now else 0.0


class Operands(NamedTuple):
    """What a codec of the engine takes in addition to the gradient; `residual` is written into."""

    residual: Array | None
    seed: int


@dataclass(frozen=True)
class Wire:
    """An exchange of one round that the engine does by itself, without a coroutine.

    seed: of the codec's random numbers; None for codecs that draw none and keep nothing (casts).
    decay: not None: error feedback by the engine.  The state of the slot is a Residual, of which so
    much is added to what is sent.
    """

    codec: CompressionCodec = Compression.none
    op: ReduceOp = ReduceOp.AVERAGE
    seed: int | None = None
    decay: float | None = None

    @property
    def has_operands(self) -> bool:
        """True if the codec takes a residual or a seed, which are others in every step."""
        return self.seed is not None

    def operands(self, slot: Any, step: int) -> Operands:
        """Those of one step.  `slot.state` gets the array that the engine writes into.

        It is a new one, so that the step can be taken back.  At a learning rate of zero the state stays.
        """
        seed = 0 if self.seed is None else seed_of(self.seed, step)
        if self.decay is None:
            return Operands(None, seed)
        state, unit = slot.state, slot.lr
        left = state.in_unit(unit, self.decay, self.codec.residuals)
        if unit:
            slot.state = Residual(left[0], unit, state.inner, *left[1:])
        return Operands(left, seed)


def seed_of(seed: int, step: int) -> int:
    """The seed of one step for the engine, which mixes in the tensor, the rank and the element."""
    return ((seed << 32) + step) % (1 << 64)
