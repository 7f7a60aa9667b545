"""Deep Gradient Compression: momentum that waits until it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot
from rabit.training.wire import change_of_unit

from .ranges import in_range

__all__ = ["MomentumCorrection"]


@dataclass
class CorrectionState:
    """u: momentum; v: what it has added up to since it was last sent, at a learning rate of `unit`."""

    u: Array = leaf(scope="local", elastic="mean")
    v: Array = leaf(scope="local", elastic="mean")
    unit: float = 1.0
    inner: Any = None


@dataclass(frozen=True)
class MomentumCorrection(Exchange):
    """u = momentum·u + x;  v = (η_before/η)·v + u;  x' = inner(v);  where v was sent, v = 0; with `masks` u too.

    What waits in v follows the learning rate η, as residuals do: Σ η·x' + mean(η·v) = Σ η·mean(u).
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

    def __post_init__(self) -> None:
        in_range(self, momentum="[0, 1)", clip="[0, inf)")

    def state(self, slot: Slot) -> CorrectionState:
        zeros = np.zeros(slot.shape, slot.dtype)
        return CorrectionState(zeros, zeros, inner=self.inner.state(slot))

    async def __call__(self, x: Array, state: CorrectionState, ranks: Ranks) -> Reduced:
        if self.clip:
            limit = self.clip / np.sqrt(ranks.size)
            x = x * x.dtype.type(min(1.0, limit / (float(np.linalg.norm(x)) + 1e-30)))
        kind = x.dtype.type
        u = kind(self.momentum) * state.u + x
        v = kind(change_of_unit(state.unit, ranks.unit)) * state.v + u
        found = await self.inner(v, state.inner, ranks)
        sent = v if found.sent is None else found.sent
        state.u = u
        if ranks.unit:  # Else nothing is applied, and all of it waits.
            keep = sent == 0
            state.v, state.unit = v * keep, ranks.unit
            state.u = u * keep if self.masks else u
        return Reduced(found.value, sent)
