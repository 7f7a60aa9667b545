"""Eight bits between the smallest and the largest entry of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.strategy import Array

from .codecs import Random
from .ranges import in_range

__all__ = ["MinMax8"]


@dataclass(frozen=True)
class MinMax8:
    """x ≈ low + q·(high - low)/255 with q rounded to the nearest; 8 bits an entry, 64 a block.

    An error of at most (high - low)/510; small enough that it is used without error feedback.
    Source: Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", 2021 (ByteGrad).
    """

    block: int = 4096

    def __post_init__(self) -> None:
        in_range(self, block="1..")

    @property
    def is_biased(self) -> bool:
        return False

    def encode(self, x: Array, random: Random) -> Any:
        if not x.size:
            return np.zeros((2, 0), x.dtype), np.zeros(0, np.uint8)
        starts = np.arange(0, x.size, self.block)
        bounds = np.stack([np.minimum.reduceat(x, starts), np.maximum.reduceat(x, starts)])
        low, step = self._spread(bounds, x)
        scaled = np.rint((x - low) / np.where(step > 0, step, 1))
        return bounds, np.clip(np.nan_to_num(scaled), 0, 255).astype(np.uint8)

    def decode(self, code: Any, like: Array) -> Array:
        bounds, codes = code
        low, step = self._spread(bounds, like)
        decoded: Array = low + codes * step
        return decoded.astype(like.dtype, copy=False)

    def _spread(self, bounds: Array, like: Array) -> tuple[Array, Array]:
        low, high = (np.repeat(each, self.block)[: like.size] for each in bounds)
        return low, (high - low) / like.dtype.type(255)
