"""Budget: the time that a measurement may take, by the clock of rank 0, so that all ranks measure alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from rabit.engine.engine import Engine
from rabit.ops.collectives import allreduce
from rabit.types import Max

__all__ = ["Budget", "Spent"]

T = TypeVar("T")


class Spent(Exception):
    """The time is over, on all ranks."""


class Budget:
    """Collective: all ranks make the same calls."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._engine = engine
        self._end = time.monotonic() + seconds
        self._longest_s = 0.0

    def part(self, seconds: float) -> Budget:
        """A budget within this one, of what is measured next."""
        return Budget(self._engine, min(seconds, self._end - time.monotonic()))

    def left_s(self) -> float:
        """The remaining time, equal on all ranks; below 0 if it was exceeded."""
        return self._of_rank_0(self._end - time.monotonic())

    def turn(self, measure: Callable[[], T]) -> T:
        """What `measure` returns.  Raises Spent where the rest is shorter than a turn was."""
        if self._of_rank_0(self._end - time.monotonic() - self._longest_s) <= 0:
            raise Spent
        began = time.monotonic()
        found = measure()
        self._longest_s = max(self._longest_s, time.monotonic() - began)
        return found

    def _of_rank_0(self, value: float) -> float:
        mine = np.array([value if self._engine.rank == 0 else -np.inf])
        return float(allreduce(mine, op=Max, engine=self._engine)[0])
