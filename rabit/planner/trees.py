"""Spanning trees that carry a collective at the rates of `optimum`, and no link above its capacity.

Switches are replaced by direct edges between their neighbours, as long as every host can still receive
everything, and the trees are then packed edge by edge under the same condition.

Sources: Bérczi and Frank, Packing Arborescences (2009); Zhao et al., ForestColl: Throughput-Optimal
Collective Communications on Heterogeneous Network Fabrics (2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from rabit.errors import Internal
from rabit.planner.flow import FlowGraph

__all__ = ["Tree", "packed_trees"]

Edge = tuple[int, int]
Path = tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """Leads from the host `root` to every other host.

    rate: bytes per unit of time that travel along it. edges: (parent, child), parents first. paths: for
    each edge the switches' paths that carry it, with the part of `rate` on each.
    """

    root: int
    rate: Fraction
    edges: tuple[Edge, ...]
    paths: Mapping[Edge, tuple[tuple[Path, Fraction], ...]]

    def reversed(self) -> Tree:
        """The tree of the reversed graph: edges (child, parent), children first."""
        return Tree(
            self.root,
            self.rate,
            tuple((child, parent) for parent, child in reversed(self.edges)),
            {
                edge[::-1]: tuple((path[::-1], rate) for path, rate in paths)
                for edge, paths in self.paths.items()
            },
        )


def packed_trees(
    hosts: int, nodes: int, roots: Mapping[int, Fraction], links: Mapping[Edge, Fraction]
) -> list[Tree]:
    """Trees whose rates add up to `roots` at each root and to at most `links` on each link.

    `links` lets the whole rate reach every host, and what enters a switch (a node from `hosts` on) leaves it:
    as the rates of `optimum` do. Takes some 2 * hosts flows for each edge of each distinct tree.
    """
    scale = math.lcm(*(rate.denominator for rate in [*roots.values(), *links.values()]))
    whole = {root: int(rate * scale) for root, rate in roots.items()}
    network = _Network(
        hosts, nodes, whole, {edge: int(rate * scale) for edge, rate in links.items()}
    )
    for switch in range(hosts, nodes):
        network.remove(switch)
    batches = _packed(hosts, whole, network.capacity)
    return [
        Tree(
            batch.root,
            Fraction(batch.count, scale),
            tuple(batch.edges),
            {edge: tuple(network.take(edge, batch.count, scale)) for edge in batch.edges},
        )
        for batch in batches
    ]


class _Network:
    """Integer capacities that shrink to those between hosts, and the links that each edge stands for."""

    def __init__(
        self, hosts: int, nodes: int, roots: dict[int, int], capacity: dict[Edge, int]
    ) -> None:
        self.capacity = {edge: value for edge, value in capacity.items() if value}
        self._hosts = hosts
        self._nodes = nodes
        self._roots = roots
        self._total = sum(roots.values())
        self._paths: dict[Edge, list[tuple[Path, int]]] = {
            edge: [(edge, value)] for edge, value in self.capacity.items()
        }

    def remove(self, switch: int) -> None:
        """Replaces each path through `switch` by an edge, so that every host still receives everything."""
        if self._remove_in_order(switch):
            return
        for start in [start for start, end in self.capacity if end == switch]:
            for end in [end for begin, end in self.capacity if begin == switch]:
                if (start, switch) in self.capacity and (switch, end) in self.capacity:
                    self._split_off(start, switch, end, self._most(start, switch, end))
        if any(switch in edge for edge in self.capacity):
            raise Internal(
                f"the planner could not replace the switch {switch}. Report this with the topology."
            )

    def take(self, edge: Edge, count: int, scale: int) -> list[tuple[Path, Fraction]]:
        """The paths that carry `count` units of `edge`, which are used up."""
        return [(path, Fraction(value, scale)) for path, value in self._taken(edge, count)]

    def _remove_in_order(self, switch: int) -> bool:
        """Lets each neighbour send to the next one, which keeps the trees short of branches; False if too slow."""
        entering = sorted(start for start, end in self.capacity if end == switch)
        leaving = sorted(end for start, end in self.capacity if start == switch)
        if not entering:
            return True
        capacity, paths = dict(self.capacity), {edge: list(of) for edge, of in self._paths.items()}
        for start in entering:
            after = [end for end in leaving if end > start] + [
                end for end in leaving if end <= start
            ]
            for end in after:
                amount = min(
                    self.capacity.get((start, switch), 0), self.capacity.get((switch, end), 0)
                )
                self._split_off(start, switch, end, amount)
        if self._is_enough():
            return True
        self.capacity, self._paths = capacity, paths
        return False

    def _is_enough(self) -> bool:
        graph = self._graph()
        return all(
            graph.flow(self._nodes, host, self._total) >= self._total for host in range(self._hosts)
        )

    def _graph(self, extra: Iterable[tuple[int, int, int]] = ()) -> FlowGraph:
        """Node `nodes` is a source with an edge of each root's rate."""
        graph = FlowGraph(
            self._nodes + 1, ((*edge, value) for edge, value in self.capacity.items())
        )
        for root, rate in self._roots.items():
            graph.add(self._nodes, root, rate)
        for edge in extra:
            graph.add(*edge)
        return graph

    def _most(self, start: int, switch: int, end: int) -> int:
        """How much of start -> switch -> end may become one edge."""
        most = min(self.capacity[start, switch], self.capacity[switch, end])
        infinite = self._total + sum(self.capacity.values())
        source = self._nodes
        for host in range(self._hosts):
            if not most:
                break
            if host not in (start, end):
                graph = self._graph(
                    ((start, source, infinite), (start, end, infinite), (host, switch, infinite))
                )
                most = min(most, graph.flow(start, switch, self._total + most) - self._total)
            graph = self._graph(
                ((switch, source, infinite), (start, end, infinite), (host, end, infinite))
            )
            most = min(most, graph.flow(switch, end, self._total + most) - self._total)
        return max(most, 0)

    def _split_off(self, start: int, switch: int, end: int, amount: int) -> None:
        if not amount:
            return
        first, second = self._taken((start, switch), amount), self._taken((switch, end), amount)
        for edge in ((start, switch), (switch, end)):
            self.capacity[edge] -= amount
            if not self.capacity[edge]:
                del self.capacity[edge]
        if start == end:
            return
        self.capacity[start, end] = self.capacity.get((start, end), 0) + amount
        paths = self._paths.setdefault((start, end), [])
        while first:
            (before, left), (after, right) = first.pop(), second.pop()
            both = min(left, right)
            paths.append((before + after[1:], both))
            if left > both:
                first.append((before, left - both))
            if right > both:
                second.append((after, right - both))

    def _taken(self, edge: Edge, amount: int) -> list[tuple[Path, int]]:
        paths, taken = self._paths[edge], []
        while amount:
            path, value = paths.pop()
            used = min(value, amount)
            taken.append((path, used))
            if value > used:
                paths.append((path, value - used))
            amount -= used
        return taken


@dataclass
class _Batch:
    """`count` equal trees that grow together."""

    root: int
    count: int
    reached: list[int]
    edges: list[Edge] = field(default_factory=list)
    # Along which no tree may grow: capacities only shrink, so that it never may again.
    refused: set[Edge] = field(default_factory=set)


def _packed(hosts: int, roots: Mapping[int, int], capacity: dict[Edge, int]) -> list[_Batch]:
    left = dict(capacity)
    waiting = [_Batch(root, count, [root]) for root, count in sorted(roots.items())]
    done: list[_Batch] = []
    while waiting:
        batch = waiting.pop()
        while len(batch.reached) < hosts:
            edge, count = _next_edge(hosts, batch, waiting, left)
            if count < batch.count:
                left_over = batch.count - count
                waiting.append(
                    _Batch(batch.root, left_over, [*batch.reached], [*batch.edges], {*batch.refused})
                )
                batch.count = count
            left[edge] -= count
            batch.reached.append(edge[1])
            batch.edges.append(edge)
        done.append(batch)
    return done


def _next_edge(
    hosts: int, batch: _Batch, others: list[_Batch], left: dict[Edge, int]
) -> tuple[Edge, int]:
    """An edge that `batch` may grow along and by how many of its trees: the others can still be completed."""
    graph = FlowGraph(hosts + len(others), ((*edge, value) for edge, value in left.items()))
    promised = sum(other.count for other in others)
    infinite = promised + batch.count
    for place, other in enumerate(others):
        for host in other.reached:
            graph.add(hosts + place, host, infinite)
    for start in batch.reached:
        links = [graph.add(start, hosts + place, other.count) for place, other in enumerate(others)]
        for end in range(hosts):
            available = min(left.get((start, end), 0), batch.count)
            if end in batch.reached or not available or (start, end) in batch.refused:
                continue
            count = min(available, graph.flow(start, end, promised + available) - promised)
            if count > 0:
                return (start, end), count
            batch.refused.add((start, end))
        for link in links:
            graph.set_capacity(link, 0)
    raise Internal(
        f"the planner could not complete a tree of root {batch.root}. Report this with the topology."
    )
