"""Signs: one bit of every entry, and a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.strategy import Array

from .codecs import Random
from .ranges import in_range

__all__ = ["Signs"]


@dataclass(frozen=True)
class Signs:
    """sign(x)·‖x‖₁/d, by blocks: 1 bit an entry and 32 bits a block.

    δ = ‖x‖₁²/(d·‖x‖²): 2/π for Gaussian entries.  There is no zero: what a parameter that nobody uses
    gets is noise of the block's scale, which error feedback takes back.
    Source: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
    2019.
    """

    block: int = 4096

    def __post_init__(self) -> None:
        in_range(self, block="1..")

    @property
    def is_biased(self) -> bool:
        return True

    def encode(self, x: Array, random: Random) -> Any:
        starts = np.arange(0, x.size, self.block)
        sums = np.add.reduceat(np.abs(x), starts) if x.size else np.zeros(0, x.dtype)
        sizes = np.diff(np.append(starts, x.size))
        return (sums / np.maximum(sizes, 1)).astype(x.dtype), np.packbits(np.signbit(x))

    def decode(self, code: Any, like: Array) -> Array:
        scales, bits = code
        is_negative = np.unpackbits(bits, count=like.size).astype(bool)
        scale = np.repeat(scales, self.block)[: like.size].astype(like.dtype)
        return np.where(is_negative, -scale, scale)
