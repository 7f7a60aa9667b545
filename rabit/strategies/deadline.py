"""Deadlines: as much of a batch as there is time for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from .ranges import in_range

__all__ = ["Deadline"]

T = TypeVar("T")


class Deadline:
    """Gives parts of a batch until `seconds` have passed and `least` of them are done.

        for part in deadline.of(parts):
            loss(model(part)).sum().backward()
            strategy.samples += len(part)

    A rank that is slow then leaves out what it has no time for, and no other waits for it: with AnyBatch
    the mean is over the samples that were done.  A round begins with the first part, which on all ranks
    is when they have ended the step before.
    seconds: for the parts of one step.  least: parts that are done however long they take.
    """

    def __init__(
        self, seconds: float, least: int = 1, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds, self.least = seconds, least
        in_range(self, seconds="(0, inf)", least="0..")
        self._clock = clock

    def of(self, parts: Iterable[T]) -> Iterator[T]:
        """The parts for which there is time, of one step."""
        end = self._clock() + self.seconds
        for done, part in enumerate(parts):
            if done >= self.least and self._clock() >= end:
                return
            yield part
