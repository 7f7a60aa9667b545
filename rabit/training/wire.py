"""Wire: an exchange of one round that the engine does by itself, and what it takes beside the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rabit.compression import Compression, CompressionCodec
from rabit.types import ReduceOp

from .state import leaf

__all__ = ["Operands", "Residual", "Wire", "seed_of"]

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

    def factor(self, unit: float, decay: float) -> tuple[float, float]:
        """By what `decay` of the residual is multiplied to be in `unit`; and the unit that it is in.

        At a learning rate of zero nothing is applied, and a residual has no other unit to go to.
        """
        unit = unit or self.unit
        return decay * self.unit / unit, unit

    def in_unit(self, unit: float, decay: float) -> tuple[Array, float]:
        """`decay` of the residual in a new array, in `unit`; and the unit that it is in."""
        factor, unit = self.factor(unit, decay)
        if factor == 1:
            return self.residual.copy(), unit
        return self.residual * self.residual.dtype.type(factor), unit

    def both_in_unit(self, unit: float, decay: float) -> tuple[Array, float]:
        """As `in_unit`, with a second row for what sums lost."""
        both = np.empty((2, *self.residual.shape), self.residual.dtype)
        factor, unit = self.factor(unit, decay)
        np.multiply(self.residual, both.dtype.type(factor), out=both[0])
        np.multiply(self.of_sums, both.dtype.type(factor), out=both[1])
        return both, unit


class Operands(NamedTuple):
    """What a codec of the engine takes beside the gradient; `residual` is written into."""

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

        It is a new one, so that the step can be taken back.
        """
        seed = 0 if self.seed is None else seed_of(self.seed, step)
        if self.decay is None:
            return Operands(None, seed)
        state = slot.state
        if self.codec.residuals == 2:
            both, unit = state.both_in_unit(slot.lr, self.decay)
            slot.state = Residual(both[0], unit, state.inner, both[1])
            return Operands(both, seed)
        residual, unit = state.in_unit(slot.lr, self.decay)
        slot.state = Residual(residual, unit, state.inner)
        return Operands(residual, seed)


def seed_of(seed: int, step: int) -> int:
    """The seed of one step for the engine, which mixes in the tensor, the rank and the element."""
    return ((seed << 32) + step) % (1 << 64)
