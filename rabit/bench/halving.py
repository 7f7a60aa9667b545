"""Successive halving: which of several is fastest, with most of the time spent on those that may be."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

__all__ = ["DUEL_TURNS", "duel", "halve", "turns_of"]

T = TypeVar("T", bound=Hashable)

# The challenger wins only if it is faster by more, and if it loses so many turns at most: noise must
# not move a choice.
_MARGIN = 0.03
_LOST_TURNS = 1
DUEL_TURNS = 5
# Who takes so many times as long as the best drops out at once: large tensors would spend the time on them.
_HOPELESS = 3.0


def turns_of(count: int) -> int:
    """How many turns `halve` takes at most for `count` candidates."""
    turns, left = 0, count
    while left > 2:
        turns += left
        left = 1 + left // 2
    return turns + (2 * DUEL_TURNS if count > 1 else 1)


def halve(
    candidates: Sequence[T], measure: Callable[[T], Sequence[float]], seed: int
) -> tuple[T, dict[T, list[float]]]:
    """The fastest of `candidates`, and every measured time of each.

    measure: seconds of some calls of a candidate.  Each round all that are left have a turn, and the
    slower half and the hopeless drop out, but never the first of the list, the incumbent.  In the end it
    meets the best of the others, if one is left, in several turns, which alone decide: what was
    measured earlier was measured in another moment.  A pure function of what `measure` returns: ranks
    that see the same times choose alike.
    """
    order = random.Random(seed)
    times: dict[T, list[float]] = {candidate: [] for candidate in candidates}
    if len(candidates) == 1:
        times[candidates[0]].extend(measure(candidates[0]))
        return candidates[0], times
    incumbent, others = candidates[0], list(candidates[1:])
    while len(others) > 1:
        # Whatever the machine does besides must not hit always the same one.
        turns = [incumbent, *others]
        order.shuffle(turns)
        for each in turns:
            times[each].extend(measure(each))
        medians = {turn: statistics.median(times[turn]) for turn in turns}
        ranked = sorted(others, key=medians.__getitem__)
        limit = _HOPELESS * min(medians.values())
        half = ranked[: (1 + len(others)) // 2]
        others = [each for each in half if medians[each] <= limit]
        if not others:
            return incumbent, times
    challenger = others[0]
    won, duelled = duel(incumbent, challenger, measure)
    for each, found in duelled.items():
        times[each].extend(found)
    return (challenger if won else incumbent), times


def duel(
    incumbent: T, challenger: T, measure: Callable[[T], Sequence[float]]
) -> tuple[bool, dict[T, list[float]]]:
    """Whether `challenger` is clearly faster, by turns that alternate, and the times of both."""
    times: dict[T, list[float]] = {incumbent: [], challenger: []}
    gains = []
    for turn in range(DUEL_TURNS):
        medians = {}
        for each in (incumbent, challenger) if turn % 2 else (challenger, incumbent):
            times[each].extend(found := measure(each))
            medians[each] = statistics.median(found)
        gains.append(medians[incumbent] / medians[challenger])
    has_lost = sorted(gains)[_LOST_TURNS] <= 1
    return statistics.median(gains) > 1 + _MARGIN and not has_lost, times
