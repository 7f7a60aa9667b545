"""Ends: how each rank ended and what it told of it, kept until the cause is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rabit.launch.report import Failure
from rabit.launch.told import Tellings

__all__ = ["Ends"]


@dataclass(frozen=True)
class _End:
    status: int
    at_s: float
    was_stopped: bool


class Ends:
    """One thread only.  Times are seconds since the start of the job.

    host_of: the host of each rank.  tail: the last lines that a rank wrote.
    """

    def __init__(self, host_of: Mapping[int, str], tail: Callable[[int], Sequence[str]]) -> None:
        self._host_of = host_of
        self._tail = tail
        self._tellings = Tellings()
        self._ends: dict[int, _End] = {}
        self._stopped_at_s = math.inf

    def hear(self, rank: int, data: bytes, at_s: float) -> None:
        """`rank` told something of its end."""
        self._tellings.hear(rank, data, at_s)

    def add(self, rank: int, status: int, at_s: float, was_stopped: bool) -> None:
        """`rank` ended; was_stopped: by a signal that the launcher had sent."""
        self._ends[rank] = _End(status, at_s, was_stopped)

    def stopping(self, at_s: float) -> None:
        """The launcher begins to stop the ranks: what they do from now on is its own doing."""
        self._stopped_at_s = min(self._stopped_at_s, at_s)

    def of(self, rank: int) -> Failure:
        """The end of `rank`, which has ended."""
        end, told = self._ends[rank], self._tellings.of(rank)
        found = Failure(
            rank,
            self._host_of[rank],
            end.status,
            end.at_s,
            self._tail(rank),
            end.was_stopped,
            told,
        )
        return found.judged(self._stopped_at_s)

    def all(self) -> list[Failure]:
        """The ends of all ranks that have ended, the first first."""
        return [self.of(rank) for rank in self._ends]

    @property
    def given_up(self) -> Mapping[int, str]:
        """The ranks that others have said to go on without, and why; "": as they were told."""
        return self._tellings.given_up

    @property
    def admitted(self) -> Mapping[int, int]:
        """The ranks that have come while the job ran, and how many there were then."""
        return self._tellings.admitted

    @property
    def have_met(self) -> bool:
        """True once ranks have met, in init() or another such call: they notice a loss themselves."""
        return self._tellings.have_met

    def missed_in_init(self) -> tuple[int, int] | None:
        """A rank that has ended well without init(), and one that waits in init() for all; None: no such."""
        joined = self._tellings.joined
        waiting = [rank for rank, awaits_all in joined.items() if awaits_all and rank not in self._ends]
        gone = [rank for rank, end in self._ends.items() if end.status == 0 and rank not in joined]
        if self._tellings.have_met or not gone or not waiting:
            return None
        return gone[0], min(waiting)

    def is_ending(self, rank: int) -> bool:
        """True if `rank` has told that it ends by itself, whether or not it has ended."""
        told = self._tellings.of(rank)
        return told is not None and (bool(told.raised) or told.lost < 0)

    def awaited(self, rank: int) -> set[int]:
        """Who has not ended, and is missed by `rank`, or by one that it misses, and so on.

        Empty if the cause has ended, or they miss each other.
        """
        found: set[int] = set()
        seen, waiting = {rank}, [rank]
        while waiting:
            each = waiting.pop()
            told = self._tellings.of(each)
            if each in self._ends:
                peers = self.of(each).peers
                if not peers:
                    return set()
            else:
                peers = [told.lost] if told is not None and told.lost >= 0 else []
                if not peers:
                    found.add(each)
            waiting += [peer for peer in peers if peer not in seen]
            seen.update(peers)
        return found
