"""One bit an entry and two means a block: 1-bit SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.strategy import Array

from .codecs import Random
from .ranges import in_range

__all__ = ["TwoMeans"]


@dataclass(frozen=True)
class TwoMeans:
    """Entries without a sign become their mean, negative ones theirs, block by block.

    The best of all codes of one bit with the threshold 0: a block keeps its mean, and loses
    Σ over both sides of the squared distance from the side's mean.  1 bit an entry, 64 a block.
    Source: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
    Distributed Training of Speech DNNs", 2014, where a block is a column.
    """

    block: int = 512

    def __post_init__(self) -> None:
        in_range(self, block="1..")

    @property
    def is_biased(self) -> bool:
        return True

    def encode(self, x: Array, random: Random) -> Any:
        blocks, is_negative = self._blocks(x), np.signbit(x)
        sums = np.maximum(blocks, 0).sum(axis=1), np.minimum(blocks, 0).sum(axis=1)
        below = self._blocks(is_negative).sum(axis=1, dtype=x.dtype)
        sizes = np.full(len(blocks), self.block, x.dtype)
        sizes[-1:] = x.size - self.block * (len(blocks) - 1)
        means = np.stack(sums) / np.maximum(np.stack([sizes - below, below]), 1)
        return means.astype(x.dtype), np.packbits(is_negative)

    def decode(self, code: Any, like: Array) -> Array:
        means, bits = code
        is_negative = self._blocks(np.unpackbits(bits, count=like.size))
        # By masks: np.where would branch at each entry, and guess wrong half the time.
        integer = np.dtype(f"i{means.itemsize}")
        upper, lower = means.view(integer)[:, :, None]
        masks = -is_negative.astype(integer)
        decoded: Array = (upper ^ ((upper ^ lower) & masks)).view(means.dtype)
        return decoded.reshape(-1)[: like.size].astype(like.dtype, copy=False)

    def _blocks(self, x: Array) -> Array:
        """In rows of one block each; the last one is filled up with zeros."""
        if x.size % self.block:
            x = np.pad(x, (0, -x.size % self.block))
        return x.reshape(-1, self.block)
