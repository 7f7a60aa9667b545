"""EF21: ranks send how far their gradients are from what the others know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot

__all__ = ["Differences"]


@dataclass
class DifferencesState:
    """mine: what the others know of this rank's gradient.  mean: the mean of all of these.

    When ranks come or go, all are known by that mean: it stays the mean of what is known.
    """

    mean: Array
    mine: Array = leaf(scope="local", follows="mean")
    inner: Any = None


@dataclass(frozen=True)
class Differences(Exchange):
    """h_i = h_i + C(x_i - h_i);  x' = h + mean(C(x_i - h_i)) = mean(h_i).

    Converges on ranks with different data where top-k alone, and error feedback with a constant step,
    do not.
    inner: an exchange that says what was sent; refused in `__call__` otherwise.
    State: h_i, local, and their mean, replicated; twice the parameter.
    Source: Richtárik et al., "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
    Feedback", 2021.
    """

    inner: Exchange

    def state(self, slot: Slot) -> DifferencesState:
        zeros = np.zeros(slot.shape, slot.dtype)
        return DifferencesState(zeros, zeros, self.inner.state(slot))

    async def __call__(self, x: Array, state: DifferencesState, ranks: Ranks) -> Reduced:
        found = await self.inner(x - state.mine, state.inner, ranks)
        sent = x - state.mine if found.sent is None else found.sent
        state.mine, state.mean = state.mine + sent, state.mean + found.value
        return Reduced(state.mean, state.mine)
