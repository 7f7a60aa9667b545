"""DeMo: what of the momentum is strong in frequency travels, the rest waits."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

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

    def __post_init__(self) -> None:
        in_range(self, momentum="[0, 1)", chunk="1..65536", count="1..")

    def state(self, slot: Slot) -> DemoState:
        return DemoState(np.zeros(slot.shape, slot.dtype))

    async def __call__(self, x: Array, state: DemoState, ranks: Ranks) -> Reduced:
        kind, basis = x.dtype.type, _cosines(self.chunk).astype(x.dtype)
        m = kind(self.momentum) * state.m + x
        blocks = np.zeros(-(-x.size // self.chunk) * self.chunk, x.dtype)
        blocks[: x.size] = m.reshape(-1)
        waves = blocks.reshape(-1, self.chunk) @ basis.T
        keep = min(self.count, self.chunk)
        places = np.argpartition(-np.abs(waves), keep - 1, axis=1)[:, :keep].astype(np.uint16)
        values = np.take_along_axis(waves, places.astype(np.intp), axis=1)
        total, senders = np.zeros_like(waves), np.zeros_like(waves)
        for where, what in await ranks.gather((places, values)):
            rows = np.arange(len(where))[:, None]
            total[rows, where] += what
            senders[rows, where] += 1
        mine = np.zeros_like(waves)
        np.put_along_axis(mine, places.astype(np.intp), values, axis=1)
        sent = (mine @ basis).reshape(-1)[: x.size].reshape(x.shape)
        state.m = m - sent
        mean = (total / np.maximum(senders, 1)) @ basis
        value = mean.reshape(-1)[: x.size].reshape(x.shape)
        return Reduced(np.sign(value) if self.signs else value, sent)


@functools.cache
def _cosines(size: int) -> Array:
    """The orthonormal DCT-II as a matrix."""
    k, n = np.arange(size)[:, None], np.arange(size)[None, :]
    basis: Array = np.cos(np.pi * (2 * n + 1) * k / (2 * size)) * np.sqrt(2 / size)
    basis[0] /= np.sqrt(2)
    return basis
