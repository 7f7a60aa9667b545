"""Growth: starts processes while an elastic job runs, for ranks that are lost and on hosts that come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rabit.launch.hosts import Host
from rabit.launch.losses import Losses
from rabit.launch.nodes.node import Events, Node
from rabit.launch.room import Room
from rabit.launch.roster import Roster

__all__ = ["Growth", "NewcomerEvents"]


class Growth:
    """Numbers newcomers, announces them in the store and starts them.  One thread only.

    first: the number of the first newcomer.  make_node: one for a newcomer of this number, on this
    slot of this host.
    """

    def __init__(
        self,
        room: Room,
        roster: Roster,
        losses: Losses,
        first: int,
        make_node: Callable[[int, Host, int], Node],
        note: Callable[[str], None],
    ) -> None:
        self._room = room
        self._roster = roster
        self._losses = losses
        self._first = self._next = first
        self._make_node = make_node
        self._note = note

    def start_one(self) -> tuple[int, str, Node] | None:
        """Number, host and node, still to be started, of the next process; None if none is wanted."""
        host = self._room.next_host(self._roster.open_ranks, time.monotonic())
        if host is None:
            return None
        number, self._next = self._next, self._next + 1
        slot = self._room.add(number, str(host))
        self._losses.change(lambda held: held.with_newcomer(number, str(host)))
        return number, str(host), self._make_node(number, host, slot)

    def ended(self, number: int, how: str) -> None:
        """The process has ended; how: "" if well, or as it was asked to."""
        host = self._room.remove(number)
        time_s = self._room.failed(host, time.monotonic()) if how and host else 0.0
        if time_s:
            name = f"process {number}" if number >= self._first else f"rank {number}"
            self._note(
                f"the host {host} is set aside for {time_s:g} s: processes there fail again and again, "
                f"{name} just now ({how})."
            )

    def set_hosts(self, hosts: Sequence[Host]) -> None:
        """These are the hosts of the job from now on."""
        before = self._room.size
        self._room.set_hosts(hosts)
        leaving = self.tell_room()
        size = self._room.size
        shown = ", ".join(f"{host}:{host.slots}" for host in hosts) or "none"
        gone = f"; {_ranks(leaving)} will leave at a commit" if leaving else ""
        self._note(f"the hosts are {shown} from now on: {before} ranks at most before, {size} now{gone}.")

    def tell_room(self) -> list[int]:
        """Tells the ranks for how many of them there is room; returns those whose slot no longer exists.

        Needed when hosts change, and when a newcomer has become a rank, perhaps on a host that has left since.
        """
        self._losses.look()
        size, leaving = self._room.size, self._room.leaving(self._roster.open_ranks)
        self._losses.change(lambda held: held.with_room(size, leaving))
        return leaving

    def due(self) -> float | None:
        """When a host that was set aside comes back, as time.monotonic()."""
        return self._room.due()


class NewcomerEvents:
    """What happens to one newcomer, whose node is not its host's only one.  Implements `Events`."""

    def __init__(self, number: int, events: Events, note: Callable[[str], None]) -> None:
        self._number = number
        self._events = events
        self._note = note
        self._has_exited = False

    def started(self, rank: int, pid: int) -> None:
        self._events.started(rank, pid)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        self._events.output(rank, stream, data)

    def closed(self, rank: int, stream: int) -> None:
        self._events.closed(rank, stream)

    def exited(self, rank: int, status: int) -> None:
        if not self._has_exited:
            self._has_exited = True
            self._events.exited(rank, status)

    def looked(self, host: str, number: int, document: Mapping[str, Any]) -> None:
        self._events.looked(host, number, document)

    def last_seen(self, rank: int, document: Mapping[str, Any]) -> None:
        self._events.last_seen(rank, document)

    def stalled(self, rank: int) -> None:
        self._events.stalled(rank)

    def failed(self, host: str, text: str, status: int) -> None:
        """The other processes of the host have nodes of their own, and tell of themselves."""
        if not self._has_exited:
            self._note(text)
            self.exited(self._number, status)


def _ranks(numbers: Sequence[int]) -> str:
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, sorted(numbers)))
