"""Which rank runs where.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rabit.errors import InvalidArgument
from rabit.launch.hosts import Host

__all__ = ["HostPlan", "Plan", "RankPlace", "make_plan"]

_MOST_RANKS = 65_536


@dataclass(frozen=True)
class RankPlace:
    """One rank; the cross numbers count the hosts that have this local rank."""

    rank: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def environ(self, size: int) -> dict[str, str]:
        """The variables by which the rank knows its place."""
        return {
            "RABIT_RANK": str(self.rank),
            "RABIT_SIZE": str(size),
            "RABIT_LOCAL_RANK": str(self.local_rank),
            "RABIT_LOCAL_SIZE": str(self.local_size),
            "RABIT_CROSS_RANK": str(self.cross_rank),
            "RABIT_CROSS_SIZE": str(self.cross_size),
        }


@dataclass(frozen=True)
class HostPlan:
    """The ranks of one host, in order; at least one."""

    host: Host
    places: tuple[RankPlace, ...]


@dataclass(frozen=True)
class Plan:
    """All ranks of a job, host by host."""

    size: int
    hosts: tuple[HostPlan, ...]

    def host_of(self, rank: int) -> Host:
        return next(
            each.host for each in self.hosts if any(place.rank == rank for place in each.places)
        )


def make_plan(hosts: Sequence[Host], size: int | None) -> Plan:
    """Fills the slots host by host, in order; `size` None: all slots.

    Raises InvalidArgument if `size` is not positive or exceeds the slots.
    """
    slots = sum(host.slots for host in hosts)
    size = slots if size is None else size
    if size < 1:
        raise InvalidArgument(f"-np is {size}: expected at least 1 process.")
    if size > _MOST_RANKS:
        raise InvalidArgument(f"-np is {size}: at most {_MOST_RANKS} processes are possible.")
    if size > slots:
        shown = ", ".join(f"{host}:{host.slots}" for host in hosts)
        raise InvalidArgument(
            f"-np is {size}, but the hosts have {slots} slots ({shown}). Give the hosts more "
            "slots, add hosts, or start fewer processes."
        )
    counts = []
    left = size
    for host in hosts:
        counts.append(min(host.slots, left))
        left -= counts[-1]
    plans = []
    first = 0
    for index, (host, count) in enumerate(zip(hosts, counts, strict=True)):
        if count:
            plans.append(HostPlan(host, _places(first, index, counts)))
        first += count
    return Plan(size, tuple(plans))


def _places(first: int, index: int, counts: Sequence[int]) -> tuple[RankPlace, ...]:
    return tuple(
        RankPlace(
            rank=first + local_rank,
            local_rank=local_rank,
            local_size=counts[index],
            cross_rank=sum(1 for count in counts[:index] if count > local_rank),
            cross_size=sum(1 for count in counts if count > local_rank),
        )
        for local_rank in range(counts[index])
    )
