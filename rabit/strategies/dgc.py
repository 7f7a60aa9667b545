"""Deep Gradient Compression: momentum that waits until it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot

__all__ = ["MomentumCorrection"]


@dataclass
class CorrectionState:
    """u: momentum; v: what it has added up to since it was last sent."""

    u: Array = leaf(scope="local", elastic="mean")
    v: Array = leaf(scope="local", elastic="mean")
    inner: Any = None


@dataclass(frozen=True)
class MomentumCorrection(Exchange):
    """u = momentum·u + x;  v = v + u;  x' = inner(v);  where v was sent, v = 0, and u = 0 with `masks`.

    clip: of ‖x‖ to clip/√W before it is added, 0 for none.
    Everything sent with `masks`: plain SGD; without: SGD with momentum.
    State: u and v, local; twice the parameter.  Needs an optimizer without momentum, and an exchange
    that says what was sent, of single entries (top-k).
    Source: Lin et al., "Deep Gradient Compression", 2018.
    """

    inner: Exchange
    momentum: float = 0.9
    masks: bool = True
    clip: float = 0.0
    has_momentum = True

    def state(self, slot: Slot) -> CorrectionState:
        zeros = np.zeros(slot.shape, slot.dtype)
        return CorrectionState(zeros, zeros, self.inner.state(slot))

    async def __call__(self, x: Array, state: CorrectionState, ranks: Ranks) -> Reduced:
        if self.clip:
            limit = self.clip / np.sqrt(ranks.size)
            x = x * x.dtype.type(min(1.0, limit / (float(np.linalg.norm(x)) + 1e-30)))
        u = x.dtype.type(self.momentum) * state.u + x
        v = state.v + u
        found = await self.inner(v, state.inner, ranks)
        sent = v if found.sent is None else found.sent
        keep = sent == 0
        state.u, state.v = (u * keep if self.masks else u), v * keep
        return Reduced(found.value, sent)
