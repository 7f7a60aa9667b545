"""Which failure is the cause, and the block that tells it."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from rabit.launch.told import Told

__all__ = [
    "Failure",
    "choose_culprit",
    "describe_end",
    "describe_status",
    "exit_status",
    "explain",
    "job_status",
    "named_peers",
    "render",
]

# The last line of a traceback, with or without the module of the exception.
_PEER_LOST = re.compile(r"\bPeerLost\b")
_RANK = re.compile(r"\brank (\d+)\b")
_LONGEST_MESSAGE = 10  # lines of an exception's text after the first
# What a rank hears while it ends (rabit/session.py): a consequence, of others.
_AT_EXIT = "rabit: at exit: "


@dataclass(frozen=True)
class Failure:
    """A rank that ended badly, or that ended well while others waited for it.

    status: exit status, or minus the signal.  at_s: seconds since the start of the job.
    was_stopped: it ended by a signal that the launcher had sent.  told: its own report.
    is_late: what made it fail came after the launcher began to stop the ranks.
    """

    rank: int
    host: str
    status: int
    at_s: float
    tail: Sequence[str] = ()
    was_stopped: bool = False
    told: Told | None = None
    is_late: bool = False

    @property
    def has_raised(self) -> bool:
        return self.told is not None and bool(self.told.raised)

    @property
    def is_own(self) -> bool:
        """True if this rank failed by itself; the launcher's signal may have been faster."""
        return self.has_raised or (self.status != 0 and not self.was_stopped)

    @property
    def was_killed(self) -> bool:
        """True if a signal ended it, from any sender."""
        return self.status < 0 or self.status > 128

    @property
    def peers(self) -> list[int]:
        """The ranks that this one misses, the most likely cause first."""
        if self.told is not None:
            return [self.told.lost] if self.told.lost >= 0 else []
        return named_peers(self.rank, self.tail)

    def judged(self, stopped_at_s: float) -> Failure:
        """With `is_late` set for a job that the launcher began to stop at that time."""
        return dataclasses.replace(self, is_late=self.began_s > stopped_at_s)

    @property
    def began_s(self) -> float:
        return self.told.at_s if self.told is not None and self.has_raised else self.at_s


def named_peers(rank: int, tail: Sequence[str]) -> list[int]:
    """The ranks whose loss the last lines of `rank` complain about, the last complaint first."""
    return [
        int(named)
        for line in reversed(tail)
        if _PEER_LOST.search(line)
        for named in _RANK.findall(line)
        if int(named) != rank
    ]


def choose_culprit(failures: Sequence[Failure]) -> Failure | None:
    """The failure that caused the others.  None if every rank ended well or was stopped.

    It is the first of those that miss no other rank: each rank tells its reason before the others
    can notice that it ends.  If all of them miss a rank, it is the one at the end of that chain,
    also if it ended well, which was too early then.
    """
    own = sorted((failure for failure in failures if failure.is_own), key=lambda each: each.began_s)
    if not own:
        return None
    first = next((each for each in own if not each.peers and not each.is_late), None)
    if first is not None:
        return first
    by_rank = {failure.rank: failure for failure in failures if failure.is_own or _has_left(failure)}
    path = [own[0].rank]
    while True:
        blamed = next((rank for rank in by_rank[path[-1]].peers if rank in by_rank), None)
        if blamed is None:
            return by_rank[path[-1]]
        if blamed in path:  # They blame each other.
            circle = [by_rank[rank] for rank in path[path.index(blamed) :]]
            return min(circle, key=lambda each: each.began_s)
        path.append(blamed)


def _has_left(failure: Failure) -> bool:
    """True of a rank that ended, or was about to end, without a failure."""
    told = failure.told
    return failure.status == 0 or (told is not None and not told.raised and told.lost < 0)


def exit_status(status: int) -> int:
    """The launcher's own exit status for a rank's: 128 + signal, as a shell has it."""
    return 128 - status if status < 0 else status


def job_status(culprit: Failure, failures: Sequence[Failure]) -> int:
    """The launcher's exit status: the culprit's, as far as the culprit came to set one."""
    if culprit.has_raised and culprit.was_stopped:
        return 1  # As Python has it after an exception.
    if culprit.is_own:
        return exit_status(culprit.status)
    return next((exit_status(failure.status) for failure in failures if failure.is_own), 1)


def describe_status(status: int) -> str:
    """ "exited with status 3" or "was killed by SIGSEGV (signal 11)"."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "a real-time signal"
    return f"was killed by {name} (signal {-status})"


def describe_end(failure: Failure) -> str:
    """How a rank has ended: what it raised, or its status."""
    told = failure.told
    if told is not None and told.raised:
        return _said(told.message, f"raised {told.raised}")[0]
    return describe_status(failure.status)


_HINTS = {
    -9: "If nobody killed it, the system ran out of memory: see 'dmesg | tail' on that host.",
    -11: "For a Python traceback, set PYTHONFAULTHANDLER=1.",
    -7: "If shared memory ran out, see 'df /dev/shm' on that host.",
    126: "The command is not executable.",
    127: "The command, or a library that it needs, was not found.",
}


def render(culprit: Failure, failures: Sequence[Failure], size: int) -> str:
    """The block for the user: the cause, its last lines, and what became of the other ranks."""
    lines = explain(culprit, failures, size)
    if culprit.has_raised:
        lines.append(f"  Its traceback is among the lines of rank {culprit.rank} above.")
    elif culprit.is_own:
        lines += _tail(culprit)
    others = [
        failure
        for failure in failures
        if failure.rank != culprit.rank and failure.status != 0 and failure.rank < size
    ]
    stopped = sum(1 for other in others if other.was_stopped and not other.has_raised)
    if stopped:
        lines.append(f"  Then rabitrun stopped {_ranks(stopped)}.")
    if len(others) > stopped:
        lines.append(
            f"  {_ranks(len(others) - stopped).capitalize()} failed as a consequence or later."
        )
    of_whom = "that of the cause" if culprit.is_own else "that of the first rank that failed"
    lines.append(f"  rabitrun exits with status {job_status(culprit, failures)}, {of_whom}.")
    return "\n".join(lines) + "\n"


def explain(
    culprit: Failure, failures: Sequence[Failure], size: int, speaker: str = "rabitrun"
) -> list[str]:
    """The lines about the cause alone, without what it wrote.  speaker: who reports it."""
    lines = _headline(culprit, size, speaker)
    if culprit.has_raised:
        assert culprit.told is not None
        if culprit.told.place:
            lines.append(f"  At {culprit.told.place}" + (":" if culprit.told.code else ""))
            lines += [f"    | {line}" for line in culprit.told.code.splitlines()]
    elif culprit.is_own:
        if culprit.status in _HINTS:
            lines.append(f"  {_HINTS[culprit.status]}")
    else:
        lines += _waiting(culprit, failures)
    return lines


def _said(message: str, before: str) -> list[str]:
    """The first line of `message` after `before`, and the next lines of it as quotations."""
    first, *rest = message.strip().split("\n")
    shown = [f"    | {line}" for line in rest[:_LONGEST_MESSAGE]]
    if len(rest) > len(shown):
        shown.append(f"    | ({len(rest) - len(shown)} more lines)")
    return [f"{before}: {first}" if first else before, *shown]


def _headline(culprit: Failure, size: int, speaker: str) -> list[str]:
    name = f"rank {culprit.rank} of {size}"
    if culprit.rank >= size:
        name = f"server {culprit.rank - size}"
    who = f"{speaker}: {name} (host {culprit.host})"
    when = f"{culprit.began_s:.1f} s after the start"
    told = culprit.told
    if told is not None and told.raised:
        return [*_said(told.message, f"{who} raised {told.raised}"), f"  That was {when}."]
    if culprit.is_own:
        return [f"{who} {describe_status(culprit.status)}, {when}."]
    # With status 0, or stopped by the launcher while it waited at its end for the others.
    return [
        f"{who} ended without an error while others waited for it: did it call fewer collectives?"
    ]


def _waiting(culprit: Failure, failures: Sequence[Failure]) -> list[str]:
    """Of a culprit that ended well: what the first rank that missed it says."""
    for failure in sorted(failures, key=lambda failure: failure.began_s):
        if culprit.rank in failure.peers:
            if failure.told is None:
                return [
                    f"  Rank {failure.rank} {describe_status(failure.status)}. Rank {culprit.rank}, "
                    "which it misses, had ended before with status 0.",
                    *_tail(failure),
                ]
            where = f" (at {failure.told.place})" if failure.told.place else ""
            return _said(failure.told.message, f"  Rank {failure.rank}{where}: {failure.told.raised or 'it ended'}")
    return []


def _tail(failure: Failure) -> list[str]:
    if not failure.tail:
        return ["  It wrote nothing."]
    own = [line for line in failure.tail if not line.startswith(_AT_EXIT)]
    if not own:
        return []
    title = "  Its last line:" if len(own) == 1 else f"  Its last {len(own)} lines:"
    return [title, *(f"    | {line}" for line in own)]


def _ranks(count: int) -> str:
    return "1 other rank" if count == 1 else f"{count} other ranks"
