"""Point: one kind, type and size of a tuning run, and who is fastest there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rabit.bench.budget import Budget
from rabit.bench.cases import Spec
from rabit.bench.contestants import Contestants
from rabit.bench.halving import DUEL_TURNS, duel, halve, turns_of
from rabit.bench.timing import Figures, measure
from rabit.bench.winners import Candidate, Winner
from rabit.errors import Internal
from rabit.types import DType, Sum

__all__ = ["Point"]

# Of the time of a point: the rest goes into buffers, barriers and the first calls.
_TIMED_SHARE = 0.6
# Before another backend wins, it has to with so many operations in flight; longer ones are cut, and
# parts of theirs are in flight anyway.
_IN_FLIGHT, _LONGEST_IN_FLIGHT = 4, 1 << 20


class Point:
    """One kind, type and size: everything that was measured of it, and who won."""

    def __init__(self, kind: str, dtype: DType, size: int) -> None:
        self.kind, self.dtype, self.size = kind, dtype, size
        self.winner = Candidate("builtin")
        self.figures: dict[Candidate, Figures] = {}

    @property
    def is_finished(self) -> bool:
        return bool(self.figures)

    def compete(self, contestants: Contestants, share_s: float, budget: Budget) -> None:
        """Finds the winner in about `share_s` seconds.  Collective.

        Raises Spent when `budget` is over: slow links may need more than the share, since every candidate is
        called a few times.  The point is not measured then.
        """
        candidates = contestants.of(self.kind, self.dtype)
        usual = candidates[0]
        meets_several = self.size <= _LONGEST_IN_FLIGHT and any(
            candidate.backend != usual.backend for candidate in candidates
        )
        # Two more duels: in company, and of the best that is left if that is lost.
        turns = turns_of(len(candidates)) + (4 * DUEL_TURNS if meets_several else 0)
        turn_s = _TIMED_SHARE * share_s / turns
        first: dict[Candidate, Figures] = {}

        def run(candidate: Candidate) -> Sequence[float]:
            found = budget.turn(lambda: self._measure(contestants, candidate, turn_s, candidate not in first))
            first.setdefault(candidate, found)
            return found.seconds

        def run_several(candidate: Candidate) -> Sequence[float]:
            return budget.turn(lambda: self._measure(contestants, candidate, turn_s, False, _IN_FLIGHT)).seconds

        winner, times = halve(candidates, run, seed=self.size)
        is_crossing = meets_several and winner.backend != usual.backend
        if is_crossing and not duel(usual, winner, run_several)[0]:
            own = [candidate for candidate in candidates[1:] if candidate.backend == usual.backend]
            best = min(own, key=lambda each: statistics.median(times[each]), default=usual)
            is_faster = best != usual and duel(usual, best, run)[0]
            winner = best if is_faster else usual
        # At once: a signal may come at any time, and a point is measured or not.
        self.winner = winner
        self.figures = {candidate: first[candidate].with_seconds(tuple(times[candidate])) for candidate in candidates}

    def _measure(
        self,
        contestants: Contestants,
        candidate: Candidate,
        longest_s: float,
        checks: bool,
        in_flight: int = 1,
    ) -> Figures:
        found = measure(
            contestants.engine_of(self.kind, candidate),
            self.spec(candidate.backend),
            longest_s=longest_s,
            checks=checks,
            is_brief=True,
            in_flight=in_flight,
        )
        if found.wrong:
            raise Internal(
                f"tune: {self.kind} of {self.size} bytes by {candidate} gave {found.wrong} wrong "
                "elements. Report this; 'rabitrun bench' shows it as well."
            )
        return found

    def spec(self, backend: str = "") -> Spec:
        return Spec(Spec.kind_of(self.kind), self.size, self.dtype, Sum, 0, backend)

    def win(self, first: DType) -> Winner:
        """What the table says.  first: the type that stands for all that are not named."""
        dtype = "" if self.dtype is first else str(self.dtype)
        return Winner(self.kind, dtype, self.size, self.winner)

    def rows(self) -> list[dict[str, object]]:
        return [
            {
                "kind": self.kind,
                "type": str(self.dtype),
                "bytes": figure.bytes,
                "candidate": str(candidate),
                "p50_us": round(figure.p50_us, 3),
                "p95_us": round(figure.p95_us, 3),
                "busbw": round(figure.busbw, 6),
                "calls": len(figure.seconds),
                "is_winner": candidate == self.winner,
            }
            for candidate, figure in self.figures.items()
        ]

    def summary(self) -> str:
        best, usual = self.figures[self.winner], next(iter(self.figures.values()))
        gain = usual.p50_us / best.p50_us
        return (
            f"{self.kind:<13} {self.dtype!s:<9} {best.bytes:>11} {best.p50_us:>11.1f} us "
            f"{best.busbw:>8.3f} GB/s  {self.winner!s:<28} {gain:.2f} x"
        )
