"""An event simulation of training steps, for orders of communication that have no formula."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from rabit.tuning.step_time import Layer


def simulate(
    layers: Sequence[Layer], costs: Sequence[float], order: Sequence[int], *, is_whole: bool, steps: int = 6
) -> float:
    """Seconds of a step in the steady state, where each forward layer waits for its own gradient.

    costs: seconds of each gradient on the link.  order: priorities, the largest first.
    is_whole: a gradient that has begun is finished first; else it can be interrupted at any moment.
    """
    count = len(layers)
    done = [0.0] * count  # when the gradient of the step before was there
    clock, began = 0.0, [0.0]
    link = _Link(costs, order, is_whole)
    for _ in range(steps):
        for index, layer in enumerate(layers):
            clock = max(clock, done[index]) + layer.forward
        ready = [0.0] * count
        for index in reversed(range(count)):
            clock += layers[index].backward
            ready[index] = clock
        done = link.carry(ready)
        began.append(max(clock, done[0]))
    return began[-1] - began[-2]


@dataclass(frozen=True)
class Job:
    """A transfer in a step: when it can begin, how long it takes, what must follow.  Seconds."""

    release: float
    cost: float
    tail: float


def shortest(jobs: Sequence[Job]) -> float:
    """The shortest time until all tails have run, on one link where transfers can be interrupted.

    Largest tail first reaches it: for some set of jobs the link has no pause from its earliest
    release on, and the smallest tail is last (Horn, "Some simple scheduling algorithms", 1974).
    """
    latest = 0.0
    for release in {each.release for each in jobs}:
        for tail in {each.tail for each in jobs}:
            chosen = [e.cost for e in jobs if e.release >= release and e.tail >= tail]
            if chosen:
                latest = max(latest, release + sum(chosen) + tail)
    return latest


class _Link:
    """Carries one step's gradients; a step's traffic ends before the next one's begins."""

    def __init__(self, costs: Sequence[float], order: Sequence[int], is_whole: bool) -> None:
        self._costs, self._order, self._is_whole = costs, order, is_whole

    def carry(self, ready: Sequence[float]) -> list[float]:
        arrivals = sorted(range(len(ready)), key=lambda index: ready[index])
        left = list(self._costs)
        done = [0.0] * len(ready)
        waiting: list[tuple[int, int]] = []
        now, at = 0.0, 0
        while at < len(arrivals) or waiting:
            if not waiting:
                now = max(now, ready[arrivals[at]])
            while at < len(arrivals) and ready[arrivals[at]] <= now:
                heapq.heappush(waiting, (-self._order[arrivals[at]], arrivals[at]))
                at += 1
            index = waiting[0][1]
            end = now + left[index]
            is_interrupted = at < len(arrivals) and ready[arrivals[at]] < end
            if is_interrupted and not self._is_whole:
                left[index] -= ready[arrivals[at]] - now
                now = ready[arrivals[at]]
                continue
            heapq.heappop(waiting)
            done[index] = now = end
        return done
