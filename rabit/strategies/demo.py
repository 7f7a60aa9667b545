"""DeMo: what of the momentum is strong in frequency travels, the rest waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rabit.training.frequencies import frequencies
from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot

from .ranges import in_range

__all__ = ["FrequencyMomentum"]


@dataclass
class DemoState:
    """m: momentum that has not been sent."""

    m: Array = leaf(scope="local", elastic="mean")


@dataclass(frozen=True)
class FrequencyMomentum(Exchange):
    """m = momentum·m + x;  q = the `count` largest coefficients of each chunk of DCT(m);  m = m - IDCT(q).

    x' = IDCT(mean of each coefficient over the ranks that sent it), its sign with `signs`.
    A chunk is `chunk` elements in row-major order, the last one padded with zeros.
    State: m, local, which is the residual too.  Needs an optimizer without momentum.
    count = chunk leaves nothing behind.
    Source: Peng, Quesnelle, Kingma, "DeMo: Decoupled Momentum Optimization", 2024.
    """

    momentum: float = 0.999
    chunk: int = 64
    count: int = 8
    signs: bool = True
    has_momentum = True

    @property
    def gives_steps(self) -> bool:  # type: ignore[override]
        return self.signs

    def __post_init__(self) -> None:
        in_range(self, momentum="[0, 1)", chunk="1..65536", count="1..")

    def state(self, slot: Slot) -> DemoState:
        return DemoState(np.zeros(slot.shape, slot.dtype))

    async def __call__(self, x: Array, state: DemoState, ranks: Ranks) -> Reduced:
        rows = ranks.empty((-(-x.size // self.chunk), self.chunk), x.dtype)
        rows.reshape(-1)[x.size :] = 0
        m = rows.reshape(-1)[: x.size].reshape(x.shape)
        np.multiply(state.m, x.dtype.type(self.momentum), out=m)
        m += x
        waves = frequencies(self.chunk, min(self.count, self.chunk), x, ranks)
        code, sent = waves.split(rows)
        mean = waves.mean(await ranks.gather(code), self.signs)
        rows -= sent
        state.m = m
        value, mine = (part.reshape(-1)[: x.size].reshape(x.shape) for part in (mean, sent))
        return Reduced(value, mine)
