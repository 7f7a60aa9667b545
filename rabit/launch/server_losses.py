"""ServerLosses: which summation servers a job has lost, and whether it goes on without them."""

from __future__ import annotations

from collections.abc import Collection

from rabit.launch.plan import Plan

__all__ = ["ServerLosses"]


class ServerLosses:
    """What a job with replicas can do without: all servers but one.  One thread only."""

    def __init__(self, plan: Plan) -> None:
        self._servers = range(plan.size, plan.processes)
        self._replicas = plan.replicas
        self._lost: set[int] = set()

    def survives(self, numbers: Collection[int]) -> bool:
        """True if these processes, which have failed, are servers without which the job goes on."""
        lost = self._lost.union(numbers)
        if self._replicas == 1 or not set(numbers) <= set(self._servers):
            return False
        if len(lost) >= len(self._servers):
            return False
        self._lost = lost
        return True

    def name_of(self, number: int) -> str:
        """"server 1"."""
        return f"server {number - self._servers.start}"

    @property
    def numbers(self) -> frozenset[int]:
        """Of those that are lost, among the processes of the job."""
        return frozenset(self._lost)

    @property
    def note(self) -> str:
        """What becomes of the job."""
        left = len(self._servers) - len(self._lost)
        return (
            f"the job goes on with {left} of {len(self._servers)} servers "
            f"(--server-replicas {self._replicas})"
        )
