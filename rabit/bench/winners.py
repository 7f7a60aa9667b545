"""What was fastest where, as rules of routes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "Winner", "rules_of"]


@dataclass(frozen=True)
class Candidate:
    """A backend, and one of its algorithms; "": as it chooses by itself."""

    backend: str
    algorithm: str = ""

    def __str__(self) -> str:
        return f"{self.backend}/{self.algorithm}" if self.algorithm else self.backend


@dataclass(frozen=True)
class Winner:
    """The fastest for one kind, type and size."""

    kind: str
    dtype: str  # as rules say it: "" stands for every type
    bytes: int
    candidate: Candidate


def rules_of(winners: Iterable[Winner], by_itself: Collection[Candidate] = ()) -> str:
    """Rules for RABIT_ROUTE: each winner from half way to the next smaller size (by ratio) to half
    way to the next larger one, equal neighbours as one.

    by_itself: candidates that a job without rules is, which need none.
    """
    rows: dict[tuple[str, str], list[Winner]] = {}
    for winner in winners:
        rows.setdefault((winner.kind, winner.dtype), []).append(winner)
    rules = []
    # What is said of a type comes before what is said of all.
    for (kind, dtype), found in sorted(rows.items(), key=lambda row: not row[0][1]):
        name = f"{kind}.{dtype}" if dtype else kind
        for low, high, candidate in _intervals(sorted(found, key=lambda each: each.bytes)):
            if dtype or candidate not in by_itself:
                rules.append(f"{name}:{_sizes(low, high)}:{candidate}")
    return ";".join(rules)


def _intervals(found: Sequence[Winner]) -> list[tuple[int, int, Candidate]]:
    """(low, high, candidate); high 0: no end."""
    runs: list[tuple[int, int, Candidate]] = []
    for index, each in enumerate(found):
        is_last = index + 1 == len(found)
        high = 0 if is_last else math.isqrt(each.bytes * found[index + 1].bytes)
        if runs and runs[-1][2] == each.candidate:
            runs[-1] = (runs[-1][0], high, each.candidate)
        else:
            runs.append((runs[-1][1] if runs else 0, high, each.candidate))
    return runs


def _sizes(low: int, high: int) -> str:
    if high == 0:
        return f">={low}" if low else "*"
    return f"{low}-{high}" if low else f"<{high}"
