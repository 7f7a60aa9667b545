"""Which failure is the cause, and the block that tells it."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Failure", "choose_culprit", "describe_status", "exit_status", "named_peers", "render"]

# The last line of a traceback, with or without the module of the exception.
_PEER_LOST = re.compile(r"\bPeerLost\b")
_RANK = re.compile(r"\brank (\d+)\b")


@dataclass(frozen=True)
class Failure:
    """A rank that ended badly.

    status: exit status, or minus the signal.  at_s: seconds since the start of the job.
    was_stopped: it ended by a signal that the launcher had sent.
    """

    rank: int
    host: str
    status: int
    at_s: float
    tail: Sequence[str] = ()
    was_stopped: bool = False


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
    """The failure that caused the others: the first in time, unless it only reports the loss of
    a rank that failed by itself too.  None if every rank ended well or was stopped.
    """
    own = sorted((each for each in failures if not each.was_stopped), key=lambda each: each.at_s)
    if not own:
        return None
    by_rank = {each.rank: each for each in own}
    path = [own[0].rank]
    while True:
        named = named_peers(path[-1], by_rank[path[-1]].tail)
        blamed = next((rank for rank in named if rank in by_rank), None)
        if blamed is None:
            return by_rank[path[-1]]
        if blamed in path:  # They blame each other.
            circle = [by_rank[rank] for rank in path[path.index(blamed) :]]
            return min(circle, key=lambda each: each.at_s)
        path.append(blamed)


def exit_status(status: int) -> int:
    """The launcher's own exit status for a rank's: 128 + signal, as a shell has it."""
    return 128 - status if status < 0 else status


def describe_status(status: int) -> str:
    """ "exited with status 3" or "was killed by SIGSEGV (signal 11)"."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "a real-time signal"
    return f"was killed by {name} (signal {-status})"


_HINTS = {
    -9: "If nobody killed it, the system ran out of memory: see 'dmesg | tail' on that host.",
    -11: "For a Python traceback, set PYTHONFAULTHANDLER=1.",
    -7: "If shared memory ran out, see 'df /dev/shm' on that host.",
    126: "The command is not executable.",
    127: "The command, or a library that it needs, was not found.",
}


def render(
    culprit: Failure, failures: Sequence[Failure], exited_before: Sequence[int], size: int
) -> str:
    """The block for the user: the cause, its last lines, and what became of the other ranks.

    exited_before: ranks that had ended with status 0 before the culprit failed.
    """
    lines = [
        f"rabitrun: rank {culprit.rank} of {size} (host {culprit.host}) "
        f"{describe_status(culprit.status)}, {culprit.at_s:.1f} s after the start."
    ]
    if culprit.status in _HINTS:
        lines.append(f"  {_HINTS[culprit.status]}")
    for peer in named_peers(culprit.rank, culprit.tail):
        if peer in exited_before:
            lines.append(
                f"  Rank {peer}, which it misses, had ended before with status 0: did it call "
                "fewer collectives than the others?"
            )
            break
    if culprit.tail:
        count = len(culprit.tail)
        lines.append("  Its last line:" if count == 1 else f"  Its last {count} lines:")
        lines += [f"    | {line}" for line in culprit.tail]
    else:
        lines.append("  It wrote nothing.")
    others = [each for each in failures if each.rank != culprit.rank]
    stopped = sum(1 for each in others if each.was_stopped)
    if stopped:
        lines.append(f"  Then rabitrun stopped {_ranks(stopped)}.")
    if len(others) > stopped:
        lines.append(
            f"  {_ranks(len(others) - stopped).capitalize()} failed as a consequence or later."
        )
    lines.append(f"  rabitrun exits with status {exit_status(culprit.status)}, that of the cause.")
    return "\n".join(lines) + "\n"


def _ranks(count: int) -> str:
    return "1 other rank" if count == 1 else f"{count} other ranks"
