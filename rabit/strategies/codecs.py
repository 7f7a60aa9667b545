"""Codecs of methods: one array as an encoding, in NumPy.

An encoding is made of arrays, numbers and tuples of them; sizes may differ between ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rabit.training.noise import generator
from rabit.training.strategy import Array, Ranks

__all__ = ["Codec", "is_noisy", "pack_bits", "randomness", "unpack_bits"]

# In quotes: NumPy loads its generators at the first use of their name.
Random = Callable[[], "np.random.Generator"]


class Codec(Protocol):
    """A frozen value.  Arrays are flat."""

    @property
    def is_biased(self) -> bool:
        """True if the expected decoding is not what was encoded."""

    def encode(self, x: Array, random: Random) -> Any:
        """What travels for x.  random: gives this tensor's generator."""

    def decode(self, code: Any, like: Array) -> Array:
        """The array of the size and type of `like` that an encoding stands for."""


def is_noisy(codec: Codec) -> bool:
    """True if it may lose more than it is given; a codec that does not say so does not."""
    return bool(getattr(codec, "is_noisy", False))


def randomness(seed: int, ranks: Ranks) -> Random:
    """Gives the generator of this tensor, step and rank, made when it is asked for first."""
    return functools.cache(lambda: generator(seed, ranks.name, ranks.step, ranks.rank))


def pack_bits(codes: Array, bits: int) -> Array:
    """Numbers below 2**bits, `bits` bits each."""
    codes = codes.astype(np.uint8, copy=False)
    if 8 % bits == 0:  # Whole numbers to a byte.
        in_byte = 8 // bits
        padded = np.zeros(-(-codes.size // in_byte) * in_byte, np.uint8)
        padded[: codes.size] = codes
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        packed: Array = np.bitwise_or.reduce(padded.reshape(-1, in_byte) << shifts, axis=1)
        return packed
    planes = (codes.astype(np.uint8)[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(planes.reshape(-1))


def unpack_bits(packed: Array, bits: int, count: int) -> Array:
    """The `count` numbers that `pack_bits` was given."""
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        numbers: Array = (packed[:, None] >> shifts) & np.uint8((1 << bits) - 1)
        return numbers.reshape(-1)[:count]
    planes = np.unpackbits(packed, count=count * bits).reshape(count, bits)
    weights = (1 << np.arange(bits)).astype(np.uint8)
    found: Array = planes @ weights
    return found
