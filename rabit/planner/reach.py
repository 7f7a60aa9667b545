"""What a plan reaches on a network that it was not made for, and how two networks differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rabit.planner.document import PlanDocument
from rabit.planner.graph import Topology
from rabit.planner.order import ring_rate, shortest_paths

__all__ = ["changed_links", "reached"]

_ALIKE = 0.1  # of a capacity; a probe is no better


def reached(document: PlanDocument, topology: Topology, kind: str = "allreduce") -> float:
    """The rate of an allreduce or an allgather along `document`, in bytes of the whole tensor per unit of time.

    topology: any network of the hosts of `document`, in their order.
    """
    trees = [tree for tree in document.trees if tree.kind == kind]
    if not trees:
        ring = float(ring_rate(topology, document.order) * topology.unit)
        return ring if kind == "allreduce" else 2 * ring
    paths = shortest_paths(topology)
    loads: dict[tuple[int, int], float] = {}
    for tree in trees:
        for way, is_up in ((tree.up, True), (tree.down, False)):
            for host, parent in enumerate(way):
                if parent < 0:
                    continue
                for link in paths[(host, parent) if is_up else (parent, host)]:
                    loads[link] = loads.get(link, 0.0) + tree.weight
    whole = float(sum(tree.weight for tree in trees))
    return (
        min(topology.capacity[link] / load for link, load in loads.items())
        * whole
        * float(topology.unit)
    )


def changed_links(before: Topology, after: Topology) -> list[str]:
    """Texts such as "lab2-switch0 50 -> 25" of the links whose capacity has changed, without those that are alike."""
    then, now = dict(_links(before)), dict(_links(after))
    if then.keys() != now.keys():
        return ["the hosts stand in other racks"]
    return [
        f"{link} {then[link]:.4g} -> {now[link]:.4g}"
        for link in then
        if abs(then[link] - now[link]) > _ALIKE * max(then[link], now[link])
    ]


def _links(topology: Topology) -> Iterator[tuple[str, float]]:
    """Each link of a network that is alike both ways, once."""
    capacities: Mapping[tuple[int, int], int] = topology.capacity
    for start, end in capacities:
        if start < end:
            yield (
                f"{topology.names[start]}-{topology.names[end]}",
                float(capacities[start, end] * topology.unit),
            )
