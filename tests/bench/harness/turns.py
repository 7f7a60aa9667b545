"""Contestants take turns, in an order that rotates, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

__all__ = ["seconds_each", "slowest", "turns"]

Result = TypeVar("Result")


def turns(contestants: Mapping[str, Callable[[], Result]], count: int, *, warm: int = 1) -> dict[str, list[Result]]:
    """What each has given in `count` turns, after `warm` turns that do not count.

    On ranks, all of them make the same calls: the order follows from the number of the turn alone.
    """
    names = list(contestants)
    found: dict[str, list[Result]] = {name: [] for name in names}
    for turn in range(-warm, count):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            result = contestants[name]()
            if turn >= 0:
                found[name].append(result)
    return found


def seconds_each(call: Callable[[], object], calls: int, before: Callable[[], object] = lambda: None) -> list[float]:
    """Seconds of each of `calls` calls, with `before` before each, outside of the time."""
    taken = []
    for _ in range(calls):
        before()
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return taken


def slowest(seconds: float) -> float:
    """Of all ranks."""
    import numpy as np

    import rabit

    return float(rabit.allreduce(np.array([seconds]), name="slowest", op=rabit.Max)[0])
