"""Error feedback: what was not sent is added to what is sent next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot, Wire

__all__ = ["ErrorFeedback"]


@dataclass
class FeedbackState:
    """residual: in units of the parameter's change per `unit`."""

    residual: Array = leaf(scope="local", elastic="mean")
    unit: float = 1.0
    inner: Any = None


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

    @property
    def has_momentum(self) -> bool:  # type: ignore[override]
        return self.inner.has_momentum

    def wire(self, slot: Slot) -> Wire | None:
        """Where nothing is lost, nothing is fed back."""
        wire = self.inner.wire(slot)
        return wire if wire is not None and not wire.codec.spec else None

    def state(self, slot: Slot) -> FeedbackState:
        zeros = np.zeros(slot.shape, slot.dtype)
        return FeedbackState(residual=zeros, inner=self.inner.state(slot))

    async def __call__(self, x: Array, state: FeedbackState, ranks: Ranks) -> Reduced:
        # At a learning rate of zero nothing is applied, and a residual has no other unit to go to.
        unit = ranks.unit or state.unit
        whole = x + state.residual * x.dtype.type(self.decay * state.unit / unit)
        found = await self.inner(whole, state.inner, ranks)
        sent = whole if found.sent is None else found.sent
        state.residual, state.unit = whole - sent, unit
        return found
