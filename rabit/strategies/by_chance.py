"""Gradient sparsification: entries kept by chance, large ones more surely, without bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.strategy import Array

from .codecs import Random
from .ranges import in_range

__all__ = ["ByChance", "probabilities"]


def probabilities(size: Array, ratio: float) -> Array:
    """min(λ·|x|, 1) with a mean of `ratio` over the entries that are not zero, as far as that goes.

    size: magnitudes.  Two corrections of λ, as the paper has it, come within 1 %.
    """
    total = float(size.sum())
    if total == 0 or not np.isfinite(total):
        return np.where(np.isfinite(size), 0.0, 1.0)
    wanted = ratio * size.size
    chance: Array = size * (wanted / total)
    np.minimum(chance, 1.0, out=chance)
    for _ in range(2):
        sure = np.count_nonzero(chance >= 1.0)
        rest = float(chance.sum()) - sure
        factor = (wanted - sure) / rest if rest > 0 else 1.0
        if factor <= 1:
            break
        chance *= factor
        np.minimum(chance, 1.0, out=chance)
    return chance


@dataclass(frozen=True)
class ByChance:
    """Entry i goes with the chance p_i = min(λ|x_i|, 1) and as x_i/p_i, so that E[D(C(x))] = x.

    ratio: how many entries go, on average.  64 bits each.  Values that are not finite go surely.
    Source: Wangni et al., "Gradient Sparsification for Communication-Efficient Distributed Optimization",
    2018 (greedy algorithm).
    """

    ratio: float

    is_noisy = True  # A block of equal entries loses 1/ratio - 1 times its square.

    def __post_init__(self) -> None:
        in_range(self, ratio="(0, 1]")

    @property
    def is_biased(self) -> bool:
        return False

    def encode(self, x: Array, random: Random) -> Any:
        chance = probabilities(np.abs(x, dtype=np.float64), self.ratio)
        places = np.flatnonzero(random().random(x.size) < chance)
        values = (x[places] / chance[places]).astype(x.dtype)
        return places.astype(np.int32 if x.size < 1 << 31 else np.int64), values

    def decode(self, code: Any, like: Array) -> Array:
        dense = np.zeros_like(like)
        places, values = code
        dense[places.astype(np.int64)] = values
        return dense
