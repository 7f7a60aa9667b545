"""The largest entries of a gradient, or entries that all ranks choose alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.integrity import first_not_finite
from rabit.training.noise import generator
from rabit.training.strategy import Array, Exchange, Ranks, Reduced

from .codecs import Random
from .ranges import in_range

__all__ = ["LargestEntries", "RandomK"]


@dataclass(frozen=True)
class LargestEntries:
    """The codec of top-k: places and values of the ratio·d entries that are largest in magnitude.

    δ = k/d at worst: ‖x - D(C(x))‖² ≤ (1-δ)‖x‖².  Ties go to the first; NaN counts as the largest.
    Source: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", 2017.
    """

    ratio: float

    def __post_init__(self) -> None:
        in_range(self, ratio="(0, 1]")

    @property
    def is_biased(self) -> bool:
        return True

    def encode(self, x: Array, random: Random) -> Any:
        count = max(1, round(self.ratio * x.size)) if x.size else 0
        size = np.abs(x)
        if count < x.size:
            # Nothing is larger than NaN, and a comparison with it would choose entries at will.
            np.copyto(size, np.inf, where=np.isnan(size))
            bar = np.partition(size, x.size - count)[x.size - count]
            above = np.flatnonzero(size > bar)
            level = np.flatnonzero(~(size > bar) & ~(size < bar))[: count - len(above)]
            places = np.sort(np.concatenate([above, level]))
        else:
            places = np.arange(x.size)
        return places.astype(np.int32 if x.size < 1 << 31 else np.int64), x[places]

    def decode(self, code: Any, like: Array) -> Array:
        dense = np.zeros_like(like)
        places, values = code
        dense[places.astype(np.int64)] = values
        return dense


@dataclass(frozen=True)
class RandomK(Exchange):
    """ratio·d entries at random, the same on all ranks, so that only values travel, and are added.

    One of each d/k in a row.  Of a gradient with a value that is not finite, all that travels is NaN.
    scale: by d/k, which makes it unbiased, with a variance of d/k - 1; without, it needs error feedback.
    State: none; the places follow from `seed`, the tensor's name and the step.
    Source: Stich et al., "Sparsified SGD with Memory", 2018; Wangni et al., 2018.
    """

    ratio: float = 0.1
    scale: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        in_range(self, ratio="(0, 1]", seed="0..")

    @property
    def is_biased(self) -> bool:
        return not self.scale

    @property
    def is_noisy(self) -> bool:
        return self.scale and self.ratio < 0.5

    async def __call__(self, x: Array, state: Any, ranks: Ranks) -> Reduced:
        value, places, mine = await self._exchange(x, ranks)
        sent = np.zeros(x.size, x.dtype)
        sent[places] = mine
        return Reduced(value, sent.reshape(x.shape))

    async def with_residual(
        self, x: Array, residual: Array, factor: float, state: Any, ranks: Ranks
    ) -> tuple[Array, Array]:
        whole = residual * x.dtype.type(factor)
        whole += x
        value, places, mine = await self._exchange(whole, ranks)
        left = whole.reshape(-1)
        left[places] -= mine
        return value, left.reshape(x.shape)

    async def _exchange(self, x: Array, ranks: Ranks) -> tuple[Array, Array, Array]:
        """The mean, the places that have travelled, and what of this rank's was there."""
        flat = x.reshape(-1)
        count = max(1, round(self.ratio * flat.size)) if flat.size else 0
        places, wide = one_of_each(count, flat.size, generator(self.seed, ranks.name, ranks.step))
        mine = flat[places]
        if self.scale:
            mine *= wide.astype(x.dtype)
        if first_not_finite(flat) is not None:
            mine[:] = np.nan  # In this step, and not when chance picks the entry.
        value = np.zeros_like(flat)
        value[places] = await ranks.mean(mine)
        return value.reshape(x.shape), places, mine


def one_of_each(count: int, size: int, random: np.random.Generator) -> tuple[Array, Array]:
    """One place of each of `count` parts of 0..size, in order, and how wide the parts are: they differ by one at most.

    To choose `count` of all places, none twice, costs more than all the rest of the exchange.
    """
    edges = np.arange(count + 1) * size // max(count, 1)
    wide = np.diff(edges)
    return edges[:-1] + (random.random(count) * wide).astype(np.int64), wide
