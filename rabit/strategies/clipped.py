"""Extreme entries are cut before an exchange."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot

from .ranges import in_range

__all__ = ["Clipped"]


@dataclass(frozen=True)
class Clipped(Exchange):
    """x' = inner(x), where |x_i| is at most deviations·√(mean of x²), of this rank's x.

    So that one extreme entry does not decide the scale of all.  What is cut is left out for good.
    The deviation is that from zero: from their mean, equal entries have none, and all would be cut.
    State: that of `inner`.
    Source: Wen et al., "TernGrad", 2017 (2.5 deviations).
    """

    inner: Exchange
    deviations: float = 2.5

    def __post_init__(self) -> None:
        in_range(self, deviations="(0, inf]")

    @property
    def is_biased(self) -> bool:
        return True

    def state(self, slot: Slot) -> Any:
        return self.inner.state(slot)

    async def __call__(self, x: Array, state: Any, ranks: Ranks) -> Reduced:
        # A limit that is NaN makes everything so, and the step is seen to be lost.
        if x.size and math.isfinite(self.deviations):
            # In float64: squares of small float32 gradients are 0, and everything would be cut.
            limit = x.dtype.type(self.deviations * np.sqrt(np.mean(np.square(x, dtype=np.float64))))
            x = np.clip(x, -limit, limit)
        return await self.inner(x, state, ranks)
