"""Frequencies: an array in chunks of cosines, of which the strongest travel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from rabit.engine.waves import Waves

from .ranks import Ranks
from .strategy import Array

__all__ = ["Code", "Frequencies", "cosines", "frequencies"]

Code = tuple[Array, Array]  # places and values, by chunks


class Frequencies(Protocol):
    """Arrays have a chunk in each row."""

    def split(self, x: Array) -> tuple[Code, Array]:
        """The strongest frequencies of each chunk, and what they amount to."""

    def mean(self, codes: Sequence[Code], signs: bool) -> Array:
        """The array of each frequency's mean over the ranks that have sent it, or its signs."""


def frequencies(chunk: int, count: int, like: Array, ranks: Ranks) -> Frequencies:
    """Of `count` frequencies of each chunk: in native code for float32, in NumPy for other types."""
    if like.dtype == np.float32:
        return _Native(chunk, count, ranks)
    return _InNumpy(chunk, count, like)


@functools.cache
def cosines(size: int) -> Array:
    """The orthonormal DCT-II as a matrix."""
    k, n = np.arange(size)[:, None], np.arange(size)[None, :]
    basis: Array = np.cos(np.pi * (2 * n + 1) * k / (2 * size)) * np.sqrt(2 / size)
    basis[0] /= np.sqrt(2)
    return basis


class _InNumpy:
    def __init__(self, chunk: int, count: int, like: Array) -> None:
        self._basis, self._count = cosines(chunk).astype(like.dtype), count

    def split(self, x: Array) -> tuple[Code, Array]:
        waves = x @ self._basis.T
        places = np.argpartition(-np.abs(waves), self._count - 1, axis=1)[:, : self._count]
        values = np.take_along_axis(waves, places, axis=1)
        mine = np.zeros_like(waves)
        np.put_along_axis(mine, places, values, axis=1)
        return (places.astype(np.uint16), values), mine @ self._basis

    def mean(self, codes: Sequence[Code], signs: bool) -> Array:
        total = np.zeros((len(codes[0][0]), len(self._basis)), self._basis.dtype)
        senders, rows = np.zeros_like(total), np.arange(len(total))[:, None]
        for places, values in codes:
            total[rows, places] += values
            senders[rows, places] += 1
        found: Array = (total / np.maximum(senders, 1)) @ self._basis
        return np.sign(found, out=found) if signs else found


@functools.cache
def _waves(library: str, chunk: int) -> Waves:
    basis = cosines(chunk).astype(np.float32)
    return Waves(library, basis, np.ascontiguousarray(basis.T))


class _Native:
    def __init__(self, chunk: int, count: int, ranks: Ranks) -> None:
        self._waves = _waves(ranks.engine.config.library, chunk)
        self._chunk, self._count, self._ranks = chunk, count, ranks

    def split(self, x: Array) -> tuple[Code, Array]:
        places = np.empty((len(x), self._count), np.uint16)
        values = np.empty(places.shape, np.float32)
        sent = self._ranks.empty(x.shape, x.dtype)
        self._waves.split(x, places, values, sent)
        return (places, values), sent

    def mean(self, codes: Sequence[Code], signs: bool) -> Array:
        places, values = (np.stack(column) for column in zip(*codes, strict=True))
        found = self._ranks.empty((places.shape[1], self._chunk), np.dtype(np.float32))
        self._waves.mean(places, values, signs, found)
        return found
