"""Crew: who works in a job, as its ranks are lost, given up, replaced and joined by others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from rabit.launch import report
from rabit.launch.ends import Ends
from rabit.launch.growth import Growth
from rabit.launch.losses import Losses
from rabit.launch.nodes.node import Node
from rabit.launch.server_losses import ServerLosses

__all__ = ["Crew"]


class Crew:
    """Brings together what becomes of an elastic job when a process ends or comes.  One thread only.

    In any other job nothing is survived but the loss of servers that have replicas, and nobody comes.
    name_of: a process, for the user.  growth: starts processes; None: the job does not grow.  add: takes a
    process that is to be started, with its host and its node.
    """

    def __init__(
        self,
        losses: Losses,
        servers: ServerLosses,
        name_of: Callable[[int], str],
        host_of: Mapping[int, str],
        note: Callable[[str], None],
        add: Callable[[int, str, Node], None],
    ) -> None:
        self._losses = losses
        self._servers = servers
        self._name_of = name_of
        self._host_of = host_of
        self._note = note
        self._add = add
        self._welcome: set[int] = set()  # newcomers that have become ranks
        self.growth: Growth | None = None
        self.may_grow = False  # the ranks of the start run, and the job is not at its end

    def ended(self, rank: int, ends: Ends, is_well: bool) -> bool:
        """A process has ended; True if the job goes on without it."""
        how = "" if is_well else report.describe_end(ends.of(rank))
        if how and self._servers.survives([rank], is_killed=ends.of(rank).was_killed):
            name = f"{self._name_of(rank)} (host {self._host_of[rank]})"
            self._note(f"{name} {how}; {self._servers.note}.")
            return True
        self._left(rank, how)
        if not is_well:
            self.grow()  # Who is on the way counts for the ranks that the job needs.
        is_survived = self._losses.survives([rank], how)
        if is_survived and how:
            early = "" if rank in self._losses.members else " before it joined"
            self._note(f"{self._name_of(rank)} {how}{early}; {self._losses.note}.")
        return is_survived

    def lost_host(self, ranks: Collection[int], text: str) -> bool:
        """A host with these processes is gone; True if the job goes on."""
        if self._servers.survives(ranks, is_killed=True):
            self._note(f"{text} {self._servers.note.capitalize()}.")
            return True
        how = f"was lost with its host: {text}"
        for each in ranks:
            self._left(each, how)
        if not self._losses.survives(ranks, how):
            return False
        self._note(f"{text} {self._losses.note.capitalize()}.")
        return True

    def take_news(self, ends: Ends) -> None:
        """Ranks have told whom they go on without, or that they take part."""
        gone = {rank: why for rank, why in ends.given_up.items() if rank not in self._losses.ranks}
        self._losses.give_up(gone)
        for rank, why in gone.items():
            self._left(rank, why)
            if why:  # Of others it has been said that they are to leave.
                self._note(f"the others go on without {self._name_of(rank)} ({why}): {self._losses.note}.")
        newcomers = ends.admitted.keys() - self._welcome
        for rank in newcomers:
            self._welcome.add(rank)
            size = ends.admitted[rank]
            self._note(
                f"process {rank} on {self._host_of[rank]} has joined; the job goes on with {size} ranks."
            )
        if newcomers and self.growth is not None:
            self.growth.tell_room()

    def grow(self) -> None:
        """Starts the processes that the job wants and has room for."""
        while self.growth is not None and self.may_grow and not self._losses.is_finishing:
            found = self.growth.start_one()
            if found is None:
                return
            self._add(*found)

    def due(self) -> float | None:
        """When there is room again, as time.monotonic()."""
        return None if self.growth is None else self.growth.due()

    @property
    def is_elastic(self) -> bool:
        """True if the job may go on without some of its ranks."""
        return self._losses.is_elastic

    @property
    def ranks(self) -> frozenset[int]:
        """Processes that are or were ranks: others are servers and newcomers."""
        return self._losses.members

    @property
    def lost(self) -> frozenset[int]:
        """Those without which the job has gone on; they may run still."""
        return self._losses.ranks | self._servers.numbers

    @property
    def replaced_servers(self) -> frozenset[int]:
        """Those of the lost whose work other servers do: no cause of anything."""
        return self._servers.numbers if self._servers.is_served else frozenset()

    def _left(self, rank: int, how: str) -> None:
        if self.growth is not None:
            self.growth.ended(rank, how)
