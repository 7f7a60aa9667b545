"""Quantisers that round to levels at random: QSGD, NUQSGD, TernGrad, natural compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rabit.errors import InvalidArgument
from rabit.training.strategy import Array

from .codecs import Random, pack_bits, unpack_bits
from .ranges import check, check_choice, in_range

__all__ = ["Levels", "Natural", "float8", "geometric", "uniform"]


def uniform(bits: int) -> tuple[float, ...]:
    """The levels of QSGD: 0, 1/s, 2/s, ..., 1 in `bits` bits, the sign among them."""
    check("uniform", "bits", bits, "2..8")
    return tuple(np.linspace(0.0, 1.0, 1 << (bits - 1)).tolist())


def geometric(bits: int) -> tuple[float, ...]:
    """The levels of NUQSGD: 0, ..., 1/4, 1/2, 1 in `bits` bits, the sign among them."""
    check("geometric", "bits", bits, "2..8")
    count = 1 << (bits - 1)
    return (0.0, *(2.0 ** -(count - 2 - index) for index in range(count - 1)))


def float8() -> tuple[float, ...]:
    """The magnitudes of an 8-bit float (4 bits of exponent, 3 of mantissa) over the largest, 448.

    Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022 (E4M3).
    """
    small = [mantissa * 2.0**-9 for mantissa in range(8)]
    large = [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)]
    return tuple(each / 448 for each in (small + large)[:127])


@dataclass(frozen=True)
class Levels:
    """s = ‖x‖ of each block; |x|/s goes to a neighbouring level at random, so that E[D(C(x))] = x.

    table: levels from 0 to 1.  norm: "max" or "l2", which is the one of the papers and far noisier at
    few bits.  ⌈log₂(levels)⌉ + 1 bits an entry, 32 a block.
    Source: Alistarh et al., "QSGD", 2017 (uniform); Ramezani-Kebrya et al., "NUQSGD", 2021 (geometric);
    Wen et al., "TernGrad", 2017 (0 and 1).  float8() with a scale for each block is 8-bit floats.
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


@dataclass(frozen=True)
class Natural:
    """±2^k at random above or below, so that E[D(C(x))] = x; 9 bits an entry, variance at most 1/8.

    Entries below 2^-126 go to 0 or 2^-126; those above 2^127, and what is not finite, to infinity.
    Source: Horváth et al., "Natural Compression for Distributed Deep Learning", 2019.
    """

    @property
    def is_biased(self) -> bool:
        return False

    def encode(self, x: Array, random: Random) -> Any:
        size = np.abs(x).astype(np.float64)
        exponent = np.where(size > 0, np.frexp(size)[1] - 1.0, -127)
        exponent = np.maximum(exponent, -127)
        low = np.where(exponent > -127, np.exp2(exponent), 0.0)
        up = np.exp2(np.maximum(exponent + 1, -126))
        rises = random().random(x.size) * (up - low) < size - low
        code = np.where(np.isfinite(size), exponent + 127 + rises, 255)
        return np.minimum(code, 255).astype(np.uint8), np.packbits(np.signbit(x))

    def decode(self, code: Any, like: Array) -> Array:
        exponents, bits = code
        power = np.exp2(exponents.astype(np.float64) - 127)
        power = np.where(exponents == 0, 0.0, np.where(exponents == 255, np.inf, power))
        is_negative = np.unpackbits(bits, count=like.size).astype(bool)
        return np.where(is_negative, -power, power).astype(like.dtype)
