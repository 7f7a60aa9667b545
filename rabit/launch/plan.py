"""Which rank runs where.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rabit.errors import InvalidArgument
from rabit.launch.hosts import Host

__all__ = ["HostPlan", "Plan", "RankPlace", "ServerPlace", "make_plan", "with_servers"]

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
class ServerPlace:
    """One summation server.  Among the processes of the job it counts as rank `number`."""

    server: int
    number: int

    def environ(self, size: int) -> dict[str, str]:
        """The variables by which the server knows its place."""
        size = max(size, self.server + 1)
        return RankPlace(self.server, 0, 1, self.server, size).environ(size)


@dataclass(frozen=True)
class HostPlan:
    """The ranks and the summation servers of one host, in order; at least one of them."""

    host: Host
    places: tuple[RankPlace, ...]
    servers: tuple[ServerPlace, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of all processes here."""
        return (*(place.rank for place in self.places), *(server.number for server in self.servers))


@dataclass(frozen=True)
class Plan:
    """All processes of a job, host by host: `size` ranks, and `servers` that count after them.

    replicas: servers that have each sum; with 2 the job continues without some of them.
    """

    size: int
    hosts: tuple[HostPlan, ...]
    servers: int = 0
    replicas: int = 1

    @property
    def processes(self) -> int:
        return self.size + self.servers

    def name_of(self, number: int) -> str:
        """"rank 3", "server 0", or "process 7", which comes to an elastic job and may become any rank."""
        if number < self.size:
            return f"rank {number}"
        is_server = number < self.processes
        return f"server {number - self.size}" if is_server else f"process {number}"

    def numbers_on(self, host: str) -> list[int]:
        """Of all processes there."""
        return [number for e in self.hosts if str(e.host) == host for number in e.numbers]

    @property
    def host_names(self) -> dict[int, str]:
        """The host of each process, by number."""
        return {number: str(host.host) for host in self.hosts for number in host.numbers}


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
    used = [(host, count) for host, count in zip(hosts, counts, strict=True) if count]
    return Plan(size, tuple(_host_plans(used)))


def with_servers(
    plan: Plan, servers: int, hosts: Sequence[Host] | None, replicas: int = 1
) -> Plan:
    """`plan` and its summation servers, on `hosts` up to their slots; None: where the ranks are.

    Raises InvalidArgument if there is nothing to sum, no room, or no server for the replicas.
    """
    if replicas > 1 and servers < replicas:
        raise InvalidArgument(
            f"--server-replicas is {replicas}, and the job has {servers} summation servers: each sum has to "
            f"be on {replicas} of them. Start more servers (-s), or leave out the replicas."
        )
    if servers == 0:
        return plan
    if plan.size == 1:
        raise InvalidArgument(
            f"{servers} summation servers for one rank: servers sum what several ranks push. "
            "Start at least 2 ranks, or leave out the servers."
        )
    slots = [host.host for host in plan.hosts] if hosts is None else _turns(hosts)
    if hosts is not None and servers > len(slots):
        raise InvalidArgument(
            f"{servers} summation servers, but --server-hosts has room for {len(slots)}. Give its "
            "hosts more, such as host:2, or start fewer servers."
        )
    at: dict[str, list[ServerPlace]] = {}
    names = {str(host.host): host.host for host in plan.hosts}
    for server in range(servers):
        host = slots[server % len(slots)]
        names.setdefault(str(host), host)
        at.setdefault(str(host), []).append(ServerPlace(server, plan.size + server))
    of_ranks = {str(host.host): host.places for host in plan.hosts}
    every = (
        HostPlan(host, of_ranks.get(name, ()), tuple(at.get(name, ())))
        for name, host in names.items()
    )
    return Plan(plan.size, tuple(every), servers, replicas)


def _turns(hosts: Sequence[Host]) -> list[Host]:
    """Each host as often as it has slots, in turn."""
    most = max(host.slots for host in hosts)
    return [host for turn in range(most) for host in hosts if turn < host.slots]


def _host_plans(used: Sequence[tuple[Host, int]]) -> Iterator[HostPlan]:
    """The ranks of each host, of which so many are there, in order."""
    # By local rank: how many hosts have it, in all and before this one.
    sizes = Counter(local_rank for _, count in used for local_rank in range(count))
    before: Counter[int] = Counter()
    first = 0
    for host, count in used:
        yield HostPlan(
            host,
            tuple(
                RankPlace(first + local_rank, local_rank, count, before[local_rank], sizes[local_rank])
                for local_rank in range(count)
            ),
        )
        before.update(range(count))
        first += count
