"""Momentum of the local gradients: what EF21-SGDM sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot

from .ranges import in_range

__all__ = ["LocalMomentum"]


@dataclass
class MomentumState:
    """v: this rank's momentum."""

    v: Array = leaf(scope="local", elastic="copy")
    inner: Any = None


@dataclass(frozen=True)
class LocalMomentum(Exchange):
    """v_i = (1-rate)·v_i + rate·x;  x' = inner(v_i).

    Around Differences it is EF21-SGDM, which converges with gradients of small batches, where EF21 alone
    needs large ones.  rate 1: inner alone.
    State: v_i, local, and the inner exchange's.  Needs an optimizer without momentum.
    Source: Fatkhullin, Tyurin, Richtárik, "Momentum Provably Improves Error Feedback!", 2023.
    """

    inner: Exchange
    rate: float = 0.1
    has_momentum = True

    def __post_init__(self) -> None:
        in_range(self, rate="(0, 1]")

    def state(self, slot: Slot) -> MomentumState:
        return MomentumState(np.zeros(slot.shape, slot.dtype), self.inner.state(slot))

    async def __call__(self, x: Array, state: MomentumState, ranks: Ranks) -> Reduced:
        kind = x.dtype.type
        state.v = kind(1 - self.rate) * state.v + kind(self.rate) * x
        return await self.inner(state.v, state.inner, ranks)
