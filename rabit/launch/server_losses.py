"""ServerLosses: which summation servers a job has lost, and whether it continues without them."""

from __future__ import annotations

from collections.abc import Collection

from rabit.launch.plan import Plan
from rabit.launch.roster import Roster

__all__ = ["ServerLosses"]


class ServerLosses:
    """A job continues when servers are lost: with replicas as before, as long as one is left, and else with
    what its ranks do elsewhere.  One thread only."""

    def __init__(self, plan: Plan, roster: Roster) -> None:
        self._servers = range(plan.size, plan.processes)
        self._replicas = plan.replicas
        self._roster = roster

    def survives(self, numbers: Collection[int], *, is_killed: bool) -> bool:
        """True if these processes, which have ended, are servers without which the job continues.

        is_killed: by a signal, or with their host.  A server that gives up by itself would most likely
        do so again: without replicas the job ends with it.
        """
        if not all(number in self._servers for number in numbers):
            return False
        if not is_killed and not self._have_work_of(self.lost.union(numbers)):
            return False
        self._roster.lose(numbers)
        return True

    @property
    def lost(self) -> frozenset[int]:
        """Numbers of the servers that are lost, among the processes of the job."""
        return frozenset(number for number in self._servers if self._roster[number].is_lost)

    @property
    def is_served(self) -> bool:
        """Whether all that was on servers still is, as far as one sees from here."""
        return self._have_work_of(self.lost)

    def _have_work_of(self, lost: Collection[int]) -> bool:
        return self._replicas > 1 and len(lost) < len(self._servers)

    @property
    def note(self) -> str:
        """What becomes of the job."""
        if not self.is_served:
            return "the ranks continue, and what they do on servers fails"
        left = len(self._servers) - len(self.lost)
        return (
            f"the job continues with {left} of {len(self._servers)} servers "
            f"(--server-replicas {self._replicas})"
        )
