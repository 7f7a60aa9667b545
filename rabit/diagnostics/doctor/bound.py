"""What a training step is bound by: its loader, its computation, its communication, or waiting for a rank."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from rabit.diagnostics.doctor.picture import Picture, RankView

__all__ = ["Bound", "bound_of", "shares_of"]

PARTS = ("loader", "computation", "communication", "waiting")


@dataclass(frozen=True)
class Bound:
    """shares: of the time of the median rank, by part, 0 to 1.  rank: for which the others wait most; -1: for none."""

    shares: Mapping[str, float]
    rank: int = -1

    @property
    def name(self) -> str:
        """The largest part."""
        return max(PARTS, key=lambda part: self.shares[part])

    @property
    def text(self) -> str:
        """ "bound by waiting for rank 1 (62 %; computation 30 %, communication 8 %)"."""
        first = self.name
        rest = ", ".join(
            f"{part} {self.shares[part]:.0%}"
            for part in sorted(PARTS, key=lambda part: -self.shares[part])
            if part != first and self.shares[part] >= 0.01
        )
        what = f"waiting for rank {self.rank}" if first == "waiting" and self.rank >= 0 else first
        return f"bound by {what} ({self.shares[first]:.0%}{'; ' + rest if rest else ''})"


def bound_of(picture: Picture) -> Bound | None:
    """Of all ranks; None: no rank has been looked at for long enough."""
    found = [shares for view in picture.ranks.values() if (shares := shares_of(view))]
    if not found:
        return None
    shares = {part: statistics.median(of_rank[part] for of_rank in found) for part in PARTS}
    late = picture.late_share
    rank = max(late, key=lambda rank: late[rank]) if late else -1
    return Bound(shares, rank if rank >= 0 and late[rank] >= 0.05 else -1)


def shares_of(view: RankView) -> dict[str, float]:
    """Of one rank while it was looked at; {}: it was not.

    What no caller waits for is hidden, and counts as computation.  Of what callers wait for, the time until all ranks
    have come is waiting, and the rest communication.
    """
    before, now = view.document.get("before", {}), view.process
    span_ns = int(now.get("time_ns", 0)) - int(before.get("time_ns", 0)) if before else 0
    if span_ns <= 0:
        return {}
    grown = {
        name: max(0, view.counters.get(name, 0) - view.counters_before.get(name, 0))
        for name in ("waiting_ns", "loader_ns")
    }
    blocked = min(1.0, grown["waiting_ns"] / span_ns)
    loader = min(1.0 - blocked, max(grown["loader_ns"] / span_ns, view.loader_share))
    until_agreed = until_done = 0
    for operation in view.operations[-200:]:
        if operation["agreed_ns"] and operation["finished_ns"]:
            until_agreed += operation["agreed_ns"] - operation["submitted_ns"]
            until_done += operation["finished_ns"] - operation["submitted_ns"]
    waiting = blocked * until_agreed / until_done if until_done else 0.0
    return {
        "loader": loader,
        "computation": max(0.0, 1.0 - blocked - loader),
        "communication": blocked - waiting,
        "waiting": waiting,
    }
