"""ServerLosses: which summation servers a job has lost, and whether it goes on without them."""

from __future__ import annotations

from collections.abc import Collection

from rabit.launch.plan import Plan

__all__ = ["ServerLosses"]


class ServerLosses:
    """A job goes on when servers are lost: with replicas as before, as long as one is left, and else with
    what its ranks do elsewhere.  One thread only."""

    def __init__(self, plan: Plan) -> None:
        self._servers = range(plan.size, plan.processes)
        self._replicas = plan.replicas
        self._lost: set[int] = set()

    def survives(self, numbers: Collection[int], *, is_killed: bool) -> bool:
        """True if these processes, which have ended, are servers without which the job goes on.

        is_killed: by a signal, or with their host.  A server that gives up by itself would most likely
        do so again: without replicas the job ends with it.
        """
        if not set(numbers) <= set(self._servers):
            return False
        lost = self._lost.union(numbers)
        if not is_killed and not self._have_work_of(lost):
            return False
        self._lost = lost
        return True

    @property
    def numbers(self) -> frozenset[int]:
        """Of those that are lost, among the processes of the job."""
        return frozenset(self._lost)

    @property
    def is_served(self) -> bool:
        """Whether all that was on servers still is, as far as one sees from here."""
        return self._have_work_of(self._lost)

    def _have_work_of(self, lost: Collection[int]) -> bool:
        return self._replicas > 1 and len(lost) < len(self._servers)

    @property
    def note(self) -> str:
        """What becomes of the job."""
        if not self.is_served:
            return "the ranks go on, and what they do on servers fails"
        left = len(self._servers) - len(self._lost)
        return (
            f"the job goes on with {left} of {len(self._servers)} servers "
            f"(--server-replicas {self._replicas})"
        )
