"""Eight bits between the smallest and the largest entry of a block."""

from __future__ import annotations

from collections.abc import Iterator
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
        bounds = np.empty((2, -(-x.size // self.block)), x.dtype)
        codes = np.empty(x.size, np.uint8)
        for (low, high), rows, found in self._rows(bounds, x, codes):
            rows.min(axis=1, out=low)
            rows.max(axis=1, out=high)
            step = (high - low) / x.dtype.type(255)
            scaled = rows - low[:, None]
            scaled /= np.where(step > 0, step, 1)[:, None]
            np.rint(scaled, out=scaled)
            if not np.isfinite(step).all():  # What the bounds say already; no number of 8 bits stands for it.
                np.nan_to_num(scaled, copy=False)
            found[...] = np.clip(scaled, 0, 255, out=scaled)
        return bounds, codes

    def decode(self, code: Any, like: Array) -> Array:
        bounds, codes = code
        decoded = np.empty(like.size, like.dtype)
        for (low, high), rows, found in self._rows(bounds, codes, decoded):
            step = (high - low) / like.dtype.type(255)
            np.multiply(rows, step[:, None], out=found)
            found += low[:, None]
        return decoded

    def _rows(self, bounds: Array, *flat: Array) -> Iterator[tuple[Array, ...]]:
        """Bounds and arrays in rows of one block each; then those of the last block, if it is not full."""
        full = flat[0].size // self.block
        end = full * self.block
        if full:
            yield bounds[:, :full], *(array[:end].reshape(full, self.block) for array in flat)
        if end < flat[0].size:
            yield bounds[:, full:], *(array[end:].reshape(1, -1) for array in flat)
