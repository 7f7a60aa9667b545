"""What the mixing stress runs: the same random operations on every rank, in an order of its own on each."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from support.mpi import pretend_hosts

__all__ = ["WINDOW", "Call", "call_of", "orders", "prepare"]

WINDOW = 64  # operations that a rank may begin in any order

_KINDS = ("allreduce", "allreduce", "broadcast", "allgather", "alltoall")
_COUNTS = (1, 3, 100, 5000, 70_000)
_DTYPES = {"allreduce": np.float32, "broadcast": np.int64}


@dataclass(frozen=True)
class Call:
    """One operation.  backend: "" names none."""

    name: str
    number: int
    backend: str
    kind: str
    count: int  # of elements that a rank hands in; those for every rank together

    def root(self, size: int) -> int:
        return self.number % size

    def input(self, rank: int) -> np.ndarray:
        value = self.number % 97 + rank
        return np.full(self.count, value, _DTYPES.get(self.kind, np.int32))

    def is_right(self, found: np.ndarray, size: int) -> bool:
        """Whether `found` is the result on a rank, every element of it."""
        value = self.number % 97
        if self.kind == "allreduce":
            return bool((found == size * value + size * (size - 1) // 2).all())
        if self.kind == "broadcast":
            return bool((found == value + self.root(size)).all())
        parts = np.repeat(value + np.arange(size), self.count // (1 if self.is_gather else size))
        return found.shape == parts.shape and bool((found == parts).all())

    @property
    def is_gather(self) -> bool:
        return self.kind == "allgather"


def call_of(seed: int, number: int, backends: tuple[str, ...], size: int) -> Call:
    """The same on every rank."""
    chance = random.Random(f"{seed}.{number}")
    backend, kind = chance.choice((*backends, "")), chance.choice(_KINDS)
    count = chance.choice(_COUNTS)
    if kind not in _DTYPES:
        count = size * min(count, 500)
    return Call(f"{seed}.{number}", number, backend, kind, count)


def orders(seed: int, operations: int, who: object) -> Iterator[list[int]]:
    """The numbers of the operations in blocks of WINDOW, each shuffled in the order of `who`."""
    chance = random.Random(f"{seed} on {who}")
    for begin in range(0, operations, WINDOW):
        numbers = list(range(begin, min(begin + WINDOW, operations)))
        chance.shuffle(numbers)
        yield numbers


def prepare() -> None:
    """MIXING_RANKS_PER_HOST: so many ranks count as those of one host.  Call it before rabit.init()."""
    if ranks_per_host := int(os.environ.get("MIXING_RANKS_PER_HOST", "0")):
        pretend_hosts(ranks_per_host)
