"""Roster: what a launcher knows of each process of a job, from its start to its end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rabit.launch.report import Failure
from rabit.launch.told import Told
from rabit.printable import printable, printable_lines

__all__ = ["News", "Process", "Roster"]

_LONGEST_LINE_BYTES = 1 << 20


@dataclass
class Process:
    """One process: a rank, a server, or a newcomer that may become any rank.  Times are seconds since the start.

    pid: 0: it has not started.  is_rank: it is or was a rank.  waits_for_all: it has called rabit.init() or another
    call in which ranks meet, and waits there for all of them, or for some; None: it has not called any.
    told: its last report of its end.  status: its exit status, or minus the signal; None: it has not ended.
    verdict: that status as a rank's end counts, 0 for one that was to end so; None: nobody has seen it end.
    is_lost: the job continues without it.  has_joined: it has become a rank of a job that runs.
    """

    host: str
    is_rank: bool
    pid: int = 0
    waits_for_all: bool | None = None
    told: Told | None = None
    status: int | None = None
    verdict: int | None = None
    ended_at_s: float = 0.0
    was_stopped: bool = False
    is_lost: bool = False
    has_joined: bool = False
    result: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class News:
    """Something that a rank reported of the membership of an elastic job.

    size: of the job with `number`, which has become a rank; 0: the other ranks continue without `number`.
    why: they do; "": it was asked to leave.
    """

    number: int
    size: int = 0
    why: str = ""


class Roster:
    """One thread only.

    hosts: of each process, by number.  size: how many of them are ranks, from 0.  tail: the last lines that a
    process wrote.
    """

    def __init__(
        self, hosts: Mapping[int, str], size: int, tail: Callable[[int], Sequence[str]]
    ) -> None:
        self._tail = tail
        self._processes = {number: Process(host, number < size) for number, host in hosts.items()}
        self._open = set(hosts)  # neither ended nor lost
        self._waited_for = set(range(size))  # ranks that are open
        self._running: set[int] = set()
        self._unstarted = set(hosts)
        self._seen: list[int] = []  # to end, the first first
        self._left_early: list[int] = []  # ended well
        self._partial: dict[int, bytes] = {}
        self._stopped_at_s = math.inf
        self.have_met = False  # ranks have met, in init() or another such call: they notice a loss themselves
        self.news: list[News] = []  # for whoever takes them

    def __getitem__(self, number: int) -> Process:
        return self._processes[number]

    def __len__(self) -> int:
        return len(self._processes)

    def add(self, number: int, host: str) -> None:
        """One more process, which may become a rank."""
        self._processes[number] = Process(host, is_rank=False)
        self._open.add(number)
        self._unstarted.add(number)

    def started(self, number: int, pid: int) -> None:
        """The process runs."""
        self._processes[number].pid = pid
        self._running.add(number)
        self._unstarted.discard(number)

    def became_ranks(self, numbers: Iterable[int]) -> None:
        """These processes are ranks from now on."""
        for number in numbers:
            process = self._processes.get(number)
            if process is not None and not process.is_rank:
                process.is_rank = True
                self._waited_for |= {number} & self._open

    def ended(
        self, number: int, status: int, verdict: int, at_s: float, was_stopped: bool = False
    ) -> None:
        """The process was seen to end.  was_stopped: by a signal that the launcher had sent."""
        process = self._processes[number]
        process.verdict, process.ended_at_s, process.was_stopped = verdict, at_s, was_stopped
        self._seen.append(number)
        if verdict == 0:
            self._left_early.append(number)
        self._close([number], status)

    def vanished(self, numbers: Iterable[int], status: int) -> None:
        """Nobody will see these processes end: they have, as far as anyone can tell."""
        self._close((number for number in numbers if self._processes[number].status is None), status)

    def _close(self, numbers: Iterable[int], status: int) -> None:
        for number in numbers:
            self._processes[number].status = status
            self._running.discard(number)
            self._open.discard(number)
            self._waited_for.discard(number)

    def lose(self, numbers: Collection[int]) -> None:
        """The job continues without these processes, which may run still."""
        for number in numbers:
            self._processes[number].is_lost = True
        self._open.difference_update(numbers)
        self._waited_for.difference_update(numbers)

    def stopping(self, at_s: float) -> None:
        """The launcher begins to stop the ranks: what they do from now on is its own doing."""
        self._stopped_at_s = min(self._stopped_at_s, at_s)

    # Questions.
    @property
    def is_any_running(self) -> bool:
        return bool(self._running)

    @property
    def is_over(self) -> bool:
        """True when every process has ended or is lost."""
        return not self._open

    @property
    def have_ranks_ended(self) -> bool:
        """True when every rank has ended or is lost."""
        return not self._waited_for

    @property
    def open_ranks(self) -> frozenset[int]:
        """Ranks that have neither ended nor are lost."""
        return frozenset(self._waited_for)

    @property
    def have_all_started(self) -> bool:
        return not self._unstarted

    def have_started(self, numbers: Iterable[int]) -> bool:
        """True if all of these processes have."""
        return self._unstarted.isdisjoint(numbers)

    def not_ended(self, numbers: Iterable[int]) -> list[int]:
        """Those of these processes that have not."""
        return [number for number in numbers if self._processes[number].status is None]

    @property
    def numbers(self) -> list[int]:
        """Of all processes."""
        return list(self._processes)

    @property
    def lost(self) -> frozenset[int]:
        """Those without which the job continues."""
        return frozenset(number for number, process in self._processes.items() if process.is_lost)

    @property
    def rank_statuses(self) -> dict[int, int]:
        """How ranks have ended."""
        return {
            number: process.status
            for number, process in self._processes.items()
            if process.is_rank and process.status is not None
        }

    def failure(self, number: int) -> Failure:
        """The end of a process that was seen to end."""
        process = self._processes[number]
        assert process.verdict is not None
        found = Failure(
            number,
            process.host,
            process.verdict,
            process.ended_at_s,
            self._tail(number),
            process.was_stopped,
            process.told,
        )
        return found.judged(self._stopped_at_s)

    def failures(self) -> list[Failure]:
        """The ends of all processes that were seen to end, the first first."""
        return [self.failure(number) for number in self._seen]

    def missed_in_init(self) -> tuple[int, int] | None:
        """A rank that has ended well without init(), and one that waits in init() for all; None: no such."""
        if self.have_met or not self._left_early:
            return None
        gone = [number for number in self._left_early if self._processes[number].waits_for_all is None]
        waiting = [
            number
            for number, process in self._processes.items()
            if process.waits_for_all and process.verdict is None
        ]
        return (gone[0], min(waiting)) if gone and waiting else None

    def is_ending(self, number: int) -> bool:
        """True if the process has said that it ends by itself, whether or not it has ended."""
        told = self._processes[number].told
        return told is not None and (bool(told.raised) or told.lost < 0)

    def awaited(self, number: int) -> set[int]:
        """Those that have not ended, and are missed by `number`, or by one that it misses, and so on.

        Empty if the cause has ended, or they miss each other.
        """
        found: set[int] = set()
        seen, waiting = {number}, [number]
        while waiting:
            rank = waiting.pop()
            process = self._processes.get(rank)
            if process is not None and process.verdict is not None:
                peers = self.failure(rank).peers
                if not peers:
                    return set()
            else:
                told = None if process is None else process.told
                peers = [told.lost] if told is not None and told.lost >= 0 else []
                if not peers:
                    found.add(rank)
            waiting += [peer for peer in peers if peer not in seen]
            seen.update(peers)
        return found

    # What processes report through their pipe; see rabit.diagnostics.ending.
    def hear(self, number: int, data: bytes, at_s: float) -> None:
        """`data`, not necessarily whole lines, came from a process."""
        *lines, rest = (self._partial.get(number, b"") + data).split(b"\n")
        self._partial[number] = rest[-_LONGEST_LINE_BYTES:]
        for line in lines:
            try:
                document = json.loads(line)
                event = _EVENTS.get(document["event"])
                if event is not None:
                    event(self, number, document, at_s)
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue  # Another program wrote into the pipe; what the process itself has said holds on.


# One row for each event of the pipe.  A function reads the whole line before it changes anything.


def _joined(roster: Roster, number: int, document: Mapping[str, Any], at_s: float) -> None:
    """It calls rabit.init() or another call in which ranks meet."""
    process = roster[number]
    process.waits_for_all = bool(document.get("awaits all", True))
    process.told = None  # A program that starts takes back what one before it told.


def _met(roster: Roster, number: int, document: Mapping[str, Any], at_s: float) -> None:
    """Such a call has returned."""
    roster.have_met = True


def _admitted(roster: Roster, number: int, document: Mapping[str, Any], at_s: float) -> None:
    """It has become a rank of a job that runs."""
    news = News(number, size=int(document["size"]))
    if not roster[number].has_joined:
        roster[number].has_joined = True
        roster.news.append(news)


def _given_up(roster: Roster, number: int, document: Mapping[str, Any], at_s: float) -> None:
    """The ranks continue without another one."""
    news = News(int(document["member"]), why=printable(str(document["why"])))
    if not roster[news.number].is_lost:
        roster.news.append(news)


def _leaving(roster: Roster, number: int, document: Mapping[str, Any], at_s: float) -> None:
    """It has come to its end."""
    roster[number].told = Told(at_s, lost=int(document["lost"]))


def _raised(roster: Roster, number: int, document: Mapping[str, Any], at_s: float) -> None:
    """An exception ends it."""
    roster[number].told = Told(
        at_s,
        raised=printable(str(document["type"])),
        message=printable_lines(str(document["message"])),
        place=printable(str(document["place"])),
        code=printable_lines(str(document["code"])),
        lost=int(document["lost"]),
    )


_EVENTS: Mapping[str, Callable[[Roster, int, Mapping[str, Any], float], None]] = {
    "joined": _joined,
    "met": _met,
    "admitted": _admitted,
    "given up": _given_up,
    "leaving": _leaving,
    "raised": _raised,
}
