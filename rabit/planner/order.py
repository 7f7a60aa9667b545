"""The order of the hosts along a ring that loads the network's links least.

Ranks keep their numbers: the order is a table of positions inside an algorithm.
Source: Luo et al., Cloud Collectives: Towards Cloud-aware Collectives for ML Workloads with Rank
Reordering (2021).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction

from rabit.planner.graph import Topology

__all__ = ["all_pairs_rate", "best_ring_order", "rate_of_loads", "ring_rate", "shortest_paths"]

Edge = tuple[int, int]

_EXHAUSTIVE_HOSTS_MAX = 8
_SWEEPS_MAX = 50


def ring_rate(topology: Topology, order: Sequence[int]) -> Fraction:
    """Bytes per unit of time of a ring allreduce (reduce-scatter, then allgather) along `order`.

    Each host sends to the next one by the path of the fewest links. In the topology's integer units.
    """
    loads = _loads(shortest_paths(topology), order)
    size = topology.hosts
    return rate_of_loads(topology, loads) * Fraction(size, 2 * (size - 1))


def all_pairs_rate(topology: Topology) -> Fraction:
    """The rate of an allreduce in which each host sums a part for all, in the topology's integer units."""
    loads: dict[Edge, int] = {}
    for path in shortest_paths(topology).values():
        for link in path:
            loads[link] = loads.get(link, 0) + 1
    return rate_of_loads(topology, loads) * Fraction(topology.hosts, 2)


def best_ring_order(topology: Topology) -> tuple[int, ...]:
    """An order that begins with host 0: the best one up to 8 hosts, beyond that a local optimum."""
    paths = shortest_paths(topology)
    rest = range(1, topology.hosts)
    if topology.hosts <= _EXHAUSTIVE_HOSTS_MAX:
        return min(
            ((0, *order) for order in itertools.permutations(rest)),
            key=lambda o: _cost(topology, paths, o),
        )
    starts = [tuple(range(topology.hosts)), _nearest_neighbours(topology, paths)]
    return min(
        (_improved(topology, paths, order) for order in starts),
        key=lambda o: _cost(topology, paths, o),
    )


def shortest_paths(topology: Topology) -> dict[Edge, tuple[Edge, ...]]:
    """For each pair of hosts the links of the path with the fewest links, and of those the widest."""
    leaving: dict[int, list[int]] = {}
    for start, end in topology.capacity:
        leaving.setdefault(start, []).append(end)
    paths: dict[Edge, tuple[Edge, ...]] = {}
    for host in range(topology.hosts):
        best: dict[int, tuple[int, tuple[Edge, ...]]] = {host: (0, ())}
        border = [host]
        while border:
            found: dict[int, tuple[int, tuple[Edge, ...]]] = {}
            for node in border:
                narrowest, links = best[node]
                for end in leaving.get(node, []):
                    capacity = topology.capacity[node, end]
                    width = min(narrowest, capacity) if links else capacity
                    if end not in best and width > found.get(end, (0, ()))[0]:
                        found[end] = (width, (*links, (node, end)))
            best |= found
            border = list(found)
        paths |= {(host, end): best[end][1] for end in range(topology.hosts) if end != host}
    return paths


def rate_of_loads(topology: Topology, loads: dict[Edge, int]) -> Fraction:
    """How fast each transfer may be if `loads[link]` of them cross each link at the same time."""
    return min(Fraction(topology.capacity[link], load) for link, load in loads.items())


def _loads(paths: dict[Edge, tuple[Edge, ...]], order: Iterable[int]) -> dict[Edge, int]:
    hosts = list(order)
    loads: dict[Edge, int] = {}
    for start, end in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
        for link in paths[start, end]:
            loads[link] = loads.get(link, 0) + 1
    return loads


def _cost(
    topology: Topology, paths: dict[Edge, tuple[Edge, ...]], order: Sequence[int]
) -> tuple[float, int]:
    loads = _loads(paths, order)
    return max(load / topology.capacity[link] for link, load in loads.items()), sum(loads.values())


def _nearest_neighbours(topology: Topology, paths: dict[Edge, tuple[Edge, ...]]) -> tuple[int, ...]:
    order = [0]
    left = set(range(1, topology.hosts))
    while left:
        following = min(left, key=lambda host: (len(paths[order[-1], host]), host))
        order.append(following)
        left.remove(following)
    return tuple(order)


def _improved(
    topology: Topology, paths: dict[Edge, tuple[Edge, ...]], order: tuple[int, ...]
) -> tuple[int, ...]:
    """Reverses or moves a piece of the ring as long as that helps (2-opt and or-opt)."""
    cost = _cost(topology, paths, order)
    for _ in range(_SWEEPS_MAX):
        better = False
        for first, last in itertools.combinations(range(1, len(order)), 2):
            piece = order[first : last + 1]
            rest = order[:first] + order[last + 1 :]
            for candidate in (
                order[:first] + piece[::-1] + order[last + 1 :],
                order[:first] + piece[1:] + piece[:1] + order[last + 1 :],
                rest + piece,
            ):
                found = _cost(topology, paths, candidate)
                if found < cost:
                    order, cost, better = candidate, found, True
        if not better:
            break
    return order
