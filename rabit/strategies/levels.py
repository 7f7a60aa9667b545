"""Levels to which entries are rounded at random, of any number, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rabit.errors import InvalidArgument
from rabit.training.strategy import Array

from .codecs import Random, pack_bits, unpack_bits
from .ranges import check, check_choice, in_range

__all__ = ["Levels", "geometric", "uniform"]


def uniform(bits: int) -> tuple[float, ...]:
    """The levels of QSGD: 0, 1/s, 2/s, ..., 1 in `bits` bits, the sign among them."""
    check("uniform", "bits", bits, "2..8")
    return tuple(np.linspace(0.0, 1.0, 1 << (bits - 1)).tolist())


def geometric(bits: int) -> tuple[float, ...]:
    """The levels of NUQSGD: 0, ..., 1/4, 1/2, 1 in `bits` bits, the sign among them."""
    check("geometric", "bits", bits, "2..8")
    count = 1 << (bits - 1)
    return (0.0, *(2.0 ** -(count - 2 - index) for index in range(count - 1)))


@dataclass(frozen=True)
class Levels:
    """s = ‖x‖ of each block; |x|/s goes to a neighbouring level at random, so that E[D(C(x))] = x.

    table: levels from 0 to 1.  norm: "max" or "l2", which is the one of the papers and far noisier at
    few bits.  ⌈log₂(levels)⌉ + 1 bits an entry, 32 a block.
    Source: Alistarh et al., "QSGD", 2017 (uniform); Ramezani-Kebrya et al., "NUQSGD", 2021 (geometric);
    Wen et al., "TernGrad", 2017 (0 and 1).
    """

    table: tuple[float, ...]
    block: int = 512
    norm: Literal["max", "l2"] = "max"

    def __post_init__(self) -> None:
        in_range(self, block="1..")
        check_choice("Levels", "norm", self.norm, ("max", "l2"))
        check_table(self.table)

    @property
    def is_biased(self) -> bool:
        return False

    @property
    def is_noisy(self) -> bool:
        return self.norm == "l2" or len(self.table) == 2

    @property
    def _bits(self) -> int:
        return 1 + max(1, (len(self.table) - 1).bit_length())

    def _blocks(self, x: Array) -> Array:
        padded = np.zeros(-(-x.size // self.block) * self.block, x.dtype)
        padded[: x.size] = x
        return padded.reshape(-1, self.block)

    def encode(self, x: Array, random: Random) -> Any:
        blocks = self._blocks(x)
        size = np.abs(blocks)
        scale = size.max(axis=1) if self.norm == "max" else np.sqrt((size * size).sum(axis=1))
        table = np.array(self.table, x.dtype)
        part = size / np.where(scale > 0, scale, 1)[:, None]
        part = np.minimum(part, 1, out=part).reshape(-1)[: x.size]
        low = level_below(part, table, is_uniform=self.table == uniform(len(table).bit_length()))
        up = (part - table[low]) / (table[low + 1] - table[low])
        draws = random().random(x.size, np.float64 if x.dtype == np.float64 else np.float32)
        codes = (low + (draws < up)).astype(np.uint8)
        codes = (codes << np.uint8(1)) | np.signbit(x)
        return scale.astype(x.dtype), pack_bits(codes, self._bits)

    def decode(self, code: Any, like: Array) -> Array:
        scale, packed = code
        codes = unpack_bits(packed, self._bits, like.size)
        value: Array = np.array(self.table, like.dtype)[codes >> 1]
        value *= np.repeat(scale, self.block)[: like.size].astype(like.dtype)
        decoded: Array = np.where(codes & 1, -value, value)
        return decoded


def check_table(table: tuple[float, ...]) -> None:
    """Raises InvalidArgument unless these can be the levels of `Levels`."""
    if not 2 <= len(table) <= 128 or (table[0], table[-1]) != (0, 1) or sorted(table) != [*table]:
        raise InvalidArgument(
            f"a table of {len(table)} levels from {table[:1]} to {table[-1:]}: it takes 2 to 128 that "
            "rise from 0 to 1, so that one fits in a byte with its sign."
        )


def level_below(part: Array, table: Array, *, is_uniform: bool) -> Array:
    """The place of the last level that is not above each part, and below the last level of all."""
    top = len(table) - 2
    if is_uniform:  # Found by multiplying.
        low = np.nan_to_num(part * (top + 1)).astype(np.intp)
        low -= table[np.minimum(low, top)] > part  # What rounding has lifted.
        clipped: Array = np.clip(low, 0, top)
        return clipped
    if top < 8:  # Counted faster than searched.
        count = np.zeros(part.shape, np.intp)
        for level in table[1:-1]:
            count += part >= level
        return count
    found: Array = np.clip(np.searchsorted(table, part, side="right") - 1, 0, top)
    return found
