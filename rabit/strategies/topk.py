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

    Of a gradient with a value that is not finite, all that travels is NaN.
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
        flat = x.reshape(-1)
        count = max(1, round(self.ratio * flat.size)) if flat.size else 0
        random = generator(self.seed, ranks.name, ranks.step)
        places = np.sort(random.choice(flat.size, count, replace=False, shuffle=False))
        factor = x.dtype.type(flat.size / count if self.scale and count else 1)
        mine = flat[places] * factor
        if first_not_finite(flat) is not None:
            mine[:] = np.nan  # In this step, and not when chance picks the entry.
        mean = await ranks.mean(mine)
        value, sent = np.zeros_like(flat), np.zeros_like(flat)
        value[places], sent[places] = mean, mine
        return Reduced(value.reshape(x.shape), sent.reshape(x.shape))
