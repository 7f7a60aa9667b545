"""Lines that several ranks print alike become one line that names the ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["CollapsedLine", "Collapser", "rank_list"]

_WINDOW_S = 0.25
_MOST_LINES = 256


@dataclass(eq=False)
class CollapsedLine:
    """`line`, without its end, was written to `stream` by `ranks`.

    follows: the line that the first of these ranks wrote before it.
    """

    stream: int
    line: bytes
    until: float
    follows: CollapsedLine | None
    ranks: set[int] = field(default_factory=set)


class Collapser:
    """Holds each line for a moment, so that other ranks can join it.  Keeps each rank's order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[CollapsedLine] = []
        self._last_of: dict[int, CollapsedLine] = {}

    def add(self, rank: int, stream: int, line: bytes, now: float) -> None:
        """`rank` wrote `line`."""
        last = self._last_of.get(rank)
        place = self._held.index(last) + 1 if last in self._held else 0
        for held in self._held[place:]:
            if held.line == line and held.stream == stream:
                break
        else:
            held = CollapsedLine(stream, line, now + _WINDOW_S, last)
            # Beside what the other ranks wrote after the same line, and before what they wrote
            # later: this rank may yet join that.
            while place < len(self._held) and self._is_sibling(self._held[place], last):
                place += 1
            self._held.insert(place, held)
        held.ranks.add(rank)
        self._last_of[rank] = held

    def _is_sibling(self, held: CollapsedLine, last: CollapsedLine | None) -> bool:
        if held.follows is last:
            return True
        # Both follow lines that have gone out already.
        return held.follows not in self._held and last not in self._held

    def take(self, now: float) -> list[CollapsedLine]:
        """The lines, in order, that no rank can join any more; `now` infinity: all."""
        count = 0
        for held in self._held:
            is_complete = len(held.ranks) == self._size
            if not is_complete and held.until > now and len(self._held) - count <= _MOST_LINES:
                break
            held.follows = None  # Else every line would keep all earlier ones alive.
            count += 1
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    @property
    def due(self) -> float | None:
        """When the next line must go out, or None when none is held."""
        return self._held[0].until if self._held else None


def rank_list(ranks: Iterable[int], size: int) -> str:
    """ "rank 3", "ranks 0-2,5" or "all ranks"."""
    ordered = sorted(ranks)
    if len(ordered) == size > 1:
        return "all ranks"
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank {shown}" if len(ordered) == 1 else f"ranks {shown}"
