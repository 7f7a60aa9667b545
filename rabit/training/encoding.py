"""Encodings as bytes: arrays, numbers and tuples of them, whose sizes may differ between ranks.

An encoding carries its own lengths, so that those of all ranks can be gathered into one array.
Layout, in 64-bit words: kind, then for a tuple its length and its parts, for an array its element
type, its dimensions and its elements, padded to whole words.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from rabit.engine.tensor import dtype_of, numpy_dtype
from rabit.errors import Internal, InvalidArgument
from rabit.types import DType

__all__ = ["pack", "pack_all", "unpack", "unpack_all"]

_TUPLE, _ARRAY, _NUMBER = 1, 2, 3


def pack(value: Any) -> np.ndarray[Any, Any]:
    """The bytes of an array, a number, or a tuple or list of such, as an array of uint8."""
    return pack_all([value])[0]


def pack_all(values: Sequence[Any]) -> tuple[np.ndarray[Any, Any], list[int]]:
    """The bytes of such values one after the other, and how many those of each are."""
    pieces: list[bytes] = []
    sizes = [_write(value, pieces) for value in values]
    return np.frombuffer(b"".join(pieces), np.uint8), sizes


def unpack(data: np.ndarray[Any, Any]) -> Any:
    """What `pack` was given; lists come back as tuples, in memory of their own."""
    (value,) = unpack_all(data)
    return value


def unpack_all(data: np.ndarray[Any, Any]) -> list[Any]:
    """The values whose bytes follow one another in `data`."""
    buffer = data.tobytes()
    values, at = [], 0
    while at < len(buffer):
        value, at = _read(buffer, at)
        values.append(value)
    return values


def _write(value: Any, pieces: list[bytes]) -> int:
    """Adds the bytes of a value to `pieces`; how many they are."""
    if isinstance(value, (tuple, list)):
        pieces.append(_words(_TUPLE, len(value)))
        return len(pieces[-1]) + sum(_write(item, pieces) for item in value)
    is_number = isinstance(value, (bool, int, float, np.generic))
    if not is_number and not isinstance(value, np.ndarray):
        raise InvalidArgument(
            f"an encoding holds {type(value).__name__}: it is made of NumPy arrays, numbers, and "
            "tuples of them. Convert it."
        )
    array = np.ascontiguousarray(value)
    kind = _NUMBER if is_number else _ARRAY
    shape = np.shape(value)
    head = _words(kind, dtype_of(array.dtype, "encoding"), len(shape), *shape)
    padding = -array.nbytes % 8
    pieces += [head, array.tobytes(), bytes(padding)]
    return len(head) + array.nbytes + padding


def _words(*numbers: int) -> bytes:
    return struct.pack(f"={len(numbers)}q", *numbers)


def _read(buffer: bytes, at: int) -> tuple[Any, int]:
    (kind, second), at = _read_words(buffer, at, 2)
    if kind == _TUPLE:
        parts = []
        for _ in range(second):
            part, at = _read(buffer, at)
            parts.append(part)
        return tuple(parts), at
    if kind not in (_ARRAY, _NUMBER) or not 0 <= second < len(DType):
        raise Internal(f"an encoding of kind {kind} came: ranks run different versions of rabit.")
    (dimensions,), at = _read_words(buffer, at, 1)
    shape, at = _read_words(buffer, at, dimensions)
    dtype = numpy_dtype(DType(second))
    count = math.prod(shape)
    stop = at + count * dtype.itemsize
    if min(shape, default=0) < 0 or stop > len(buffer):
        raise Internal(f"an encoding ends at byte {len(buffer)}, and holds an array of shape {shape} to {stop}.")
    array = np.frombuffer(buffer, dtype, count, at).reshape(shape).copy()
    at = stop + -(count * dtype.itemsize) % 8
    return (array.item() if kind == _NUMBER else array), at


def _read_words(buffer: bytes, at: int, count: int) -> tuple[tuple[int, ...], int]:
    stop = at + 8 * count
    if not 0 <= count <= 64 or stop > len(buffer):
        raise Internal(
            f"an encoding ends at byte {len(buffer)}, where a header continues to {stop}."
        )
    return struct.unpack_from(f"={count}q", buffer, at), stop
