"""Place: where one member of an elastic job stands among the others."""

from __future__ import annotations

from dataclasses import dataclass

from rabit.rendezvous.membership import Membership

__all__ = ["Place", "are_hosts_equal", "place_of"]


@dataclass(frozen=True)
class Place:
    """Where one member stands among the members of an epoch: values for fields of Config."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def place_of(membership: Membership, member: int) -> Place:
    """Where `member`, which is one of the members, stands among them."""
    rows: dict[str, list[int]] = {}  # members by host, in the order of their ranks
    for other in membership.members:
        rows.setdefault(membership.hosts[other], []).append(other)
    mine = rows[membership.hosts[member]]
    local_rank = mine.index(member)
    column = [host for host, row in rows.items() if len(row) > local_rank]
    return Place(
        rank=membership.members.index(member),
        size=len(membership.members),
        local_rank=local_rank,
        local_size=len(mine),
        cross_rank=column.index(membership.hosts[member]),
        cross_size=len(column),
    )


def are_hosts_equal(membership: Membership) -> bool:
    """True if every host has the same number of members."""
    hosts = [membership.hosts[member] for member in membership.members]
    return len({hosts.count(host) for host in hosts}) == 1
