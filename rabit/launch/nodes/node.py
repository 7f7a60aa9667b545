"""What happens to ranks, told by whoever runs them to whoever oversees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["REPORT", "RESULT", "STDERR", "STDOUT", "Events", "Node"]

# RESULT: what rabit.run returns.  REPORT: why a rank ends, one JSON document a line.
STDOUT, STDERR, RESULT, REPORT = 1, 2, 3, 4


class Events(Protocol):
    """The overseer of ranks: the supervisor, or the agent that passes everything on to it."""

    def started(self, rank: int, pid: int) -> None:
        """The process of `rank` runs."""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """`rank` wrote `data` (not empty, not necessarily whole lines) to a stream."""

    def closed(self, rank: int, stream: int) -> None:
        """Nothing more comes from this stream."""

    def exited(self, rank: int, status: int) -> None:
        """`rank` ended; `status` is its exit status, or minus the signal that killed it."""

    def looked(self, host: str, number: int, document: Mapping[str, Any]) -> None:
        """The answer to `Node.look` with this number."""

    def last_seen(self, rank: int, document: Mapping[str, Any]) -> None:
        """What the record of `rank`, which has ended, says; before `exited`."""

    def stalled(self, rank: int) -> None:
        """The engine of `rank` has reported a stall."""

    def failed(self, host: str, text: str, status: int) -> None:
        """A host could not start its ranks, or is lost; `status` is for the launcher's exit."""


class Node(Protocol):
    """Runs the ranks of one host.  One thread only.

    by_hand: what a user types to see whether the host answers; "": it is this machine.
    """

    host: str
    ranks: tuple[int, ...]
    by_hand: str

    def start(self) -> None:
        """Starts the ranks; returns at once.  Failures arrive as events."""

    def signal(self, signum: int, whole_group: bool) -> None:
        """Sends a signal to every living rank, or to all processes of its session's group."""

    def look(self, number: int, ask: Mapping[str, Any]) -> None:
        """Looks at the ranks; returns at once, and `Events.looked` follows.  ask: see HostRecords."""

    def pause(self, is_paused: bool) -> None:
        """Stops or continues reading what the ranks write."""

    def leave(self) -> None:
        """Asks the remaining ranks to end.  Returns at once."""

    def finish(self) -> None:
        """Kills the remaining ranks and frees everything.

        Waits, since `leave`, for the time that ranks have to end and for two seconds at most.
        """
