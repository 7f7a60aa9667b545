"""Crew: who works in a job, as its ranks are lost, given up, replaced and joined by others."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rabit.launch import report
from rabit.launch.growth import Growth
from rabit.launch.losses import Losses
from rabit.launch.nodes.node import Node
from rabit.launch.roster import Roster
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
        roster: Roster,
        losses: Losses,
        servers: ServerLosses,
        name_of: Callable[[int], str],
        note: Callable[[str], None],
        add: Callable[[int, str, Node], None],
    ) -> None:
        self._roster = roster
        self._losses = losses
        self._servers = servers
        self._name_of = name_of
        self._note = note
        self._add = add
        self.growth: Growth | None = None
        self.may_grow = False  # the ranks of the start run, and the job is not at its end

    def ended(self, number: int, is_well: bool) -> bool:
        """A process has ended; True if the job continues without it."""
        failure = self._roster.failure(number)
        how = "" if is_well else report.describe_end(failure)
        if how and self._servers.survives([number], is_killed=failure.was_killed):
            name = f"{self._name_of(number)} (host {failure.host})"
            self._note(f"{name} {how}; {self._servers.note}.")
            return True
        self._left(number, how)
        if not is_well:
            self.grow()  # Who is on the way counts for the ranks that the job needs.
        is_survived = self._losses.survives([number], how)
        if is_survived and how:
            early = "" if self._roster[number].is_rank else " before it joined"
            self._note(f"{self._name_of(number)} {how}{early}; {self._losses.note}.")
        return is_survived

    def lost_host(self, numbers: Collection[int], text: str) -> bool:
        """A host with these processes is gone; True if the job continues."""
        if self._servers.survives(numbers, is_killed=True):
            self._note(f"{text} {self._servers.note.capitalize()}.")
            return True
        how = f"was lost with its host: {text}"
        for number in numbers:
            self._left(number, how)
        if not self._losses.survives(numbers, how):
            return False
        self._note(f"{text} {self._losses.note.capitalize()}.")
        return True

    def take_news(self) -> None:
        """Ranks have reported which ranks they continue without, or that they take part."""
        news, self._roster.news = self._roster.news, []
        gone = {new.number: new.why for new in news if not new.size}
        self._losses.give_up(gone)
        for number, why in gone.items():
            self._left(number, why)
            if why:  # Of others it has been said that they are to leave.
                self._note(
                    f"the others continue without {self._name_of(number)} ({why}): {self._losses.note}."
                )
        joined = [new for new in news if new.size]
        for each in joined:
            self._note(
                f"process {each.number} on {self._roster[each.number].host} has joined; the job continues with "
                f"{each.size} ranks."
            )
        if joined and self.growth is not None:
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
        """True if the job may continue without some of its ranks."""
        return self._losses.is_elastic

    @property
    def replaced_servers(self) -> frozenset[int]:
        """Those of the lost whose work other servers do: no cause of anything."""
        return self._servers.lost if self._servers.is_served else frozenset()

    def _left(self, number: int, how: str) -> None:
        if self.growth is not None:
            self.growth.ended(number, how)
