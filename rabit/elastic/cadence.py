"""Cadence: how many steps lie between two commits."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

from rabit.engine.current import current_engine
from rabit.ops.votes import Vote
from rabit.session import rank

__all__ = ["Cadence"]

# Of the time. A commit costs several times what it takes: its copy sends what the step needs out of the caches, and in
# a job that may grow its vote is the engine's work. Steps of 11 ms with 1 MiB lost 0.6 % of processor time so.
_SHARE = 0.001
# Between two commits at most, so that no loss costs more.
_MOST_S = 30.0
# Commits after which the ranks decide, at first and at last.
_DECIDES_FIRST, _DECIDES_LAST = 8, 256


class Cadence:
    """Commits after every N steps, the same ones on all ranks.  One thread only.

    every: steps, at least 1.  None: as many as keep commits at a thousandth of the time; after some commits,
    ever more of them, rank 0 says how many that are, by what both have taken there.
    """

    def __init__(self, every: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._given = every
        self._clock = clock
        self._steps = 0  # since the last commit
        self._since = 0.0
        self._step_s: list[float] = []  # since the ranks decided
        self._commit_s: list[float] = []
        self.start_over()

    def start_over(self) -> None:
        """The ranks are others now: they begin alike.  Every step is committed until they decide."""
        self.every = self._given or 1
        self._decide_after = _DECIDES_FIRST
        self._forget()

    def end_step(self, commit: Callable[[], None]) -> None:
        """Calls `commit` if it is time.  Blocks where the ranks decide, until all have come."""
        self._steps += 1
        if self._steps < self.every:
            return
        begin = self._clock()
        commit()
        end = self._clock()
        self._step_s.append((begin - self._since) / self._steps)
        self._commit_s.append(end - begin)
        self._steps, self._since = 0, end
        if self._given is None and len(self._commit_s) >= self._decide_after:
            self._decide()

    def _decide(self) -> None:
        wanted = self._wanted() if rank() == 0 else 0  # The others' clocks say something else.
        answer = Vote(wanted, "rabit.elastic.cadence", engine=current_engine()).wait()
        self.every = answer or self.every  # Rank 0 may have joined.
        self._decide_after = min(4 * self._decide_after, _DECIDES_LAST)
        self._forget()

    def _wanted(self) -> int:
        step_s = max(statistics.median(self._step_s), 1e-9)
        cheap = math.ceil(statistics.median(self._commit_s) / (_SHARE * step_s))
        return max(1, min(cheap, int(_MOST_S / step_s)))

    def _forget(self) -> None:
        self._steps, self._since = 0, self._clock()
        self._step_s, self._commit_s = [], []
