"""Error feedback: what was not sent is added to what is sent next."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from rabit.errors import InvalidArgument
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot, Wire, parts_of
from rabit.training.wire import Residual

from .ranges import in_range

__all__ = ["ErrorFeedback"]


@dataclass(frozen=True)
class ErrorFeedback(Exchange):
    """p = x + decay·(η_before/η)·e;  x' = inner(p);  e = p - sent(p).

    What is conserved is the sum of the updates: Σ η·x' + mean(η·e) = Σ η·mean(x), so that a residual of
    gradients follows the learning rate when that changes.
    inner: any exchange that says what was sent.  decay: 1 keeps all; below 1 forgets (SparseLoCo).
    State: the residual, local, as large as the parameter.
    Source: Seide et al., "1-Bit Stochastic Gradient Descent", 2014; Karimireddy et al., "Error Feedback
    Fixes SignSGD", 2019; the change with the learning rate: Zheng et al., 2019.
    """

    inner: Exchange
    decay: float = 1.0

    def __post_init__(self) -> None:
        in_range(self, decay="[0, 1]")
        parts = parts_of(self.inner)
        noisy = next((part for part in parts if isinstance(part, Exchange) and part.is_noisy), None)
        if noisy is not None:
            raise InvalidArgument(
                f"ErrorFeedback around {noisy!r}: what that loses may be larger than what it is given, and the "
                "residual would grow without end. It is right in the mean without a residual: leave ErrorFeedback "
                "out, or take norm='max' and more levels."
            )

    def wire(self, slot: Slot) -> Wire | None:
        """By the engine, where it keeps what it did not send; where nothing is lost, none is fed back."""
        wire = self.inner.wire(slot)
        if wire is not None and wire.has_operands:
            return dataclasses.replace(wire, decay=self.decay)
        return wire if wire is not None and not wire.codec.spec else None

    def state(self, slot: Slot) -> Residual:
        zeros = np.zeros(slot.shape, slot.dtype)
        return Residual(zeros, inner=self.inner.state(slot))

    async def __call__(self, x: Array, state: Residual, ranks: Ranks) -> Reduced:
        factor = state.factor(ranks.unit, self.decay)
        value, left = await self.inner.with_residual(x, state.residual, factor, state.inner, ranks)
        if ranks.unit:  # At a learning rate of zero nothing is applied, and what is left waits as it was.
            state.residual, state.unit = left, ranks.unit
        return Reduced(value)
