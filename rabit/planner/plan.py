"""A plan: what a network allows at most, the trees that reach it, and the order of the hosts on a ring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from rabit.planner.graph import Topology
from rabit.planner.optimum import Rates, allgather_rates, allreduce_rates, broadcast_rates
from rabit.planner.order import best_ring_order, rate_of_loads, ring_rate, shortest_paths
from rabit.planner.trees import Edge, Tree, packed_trees

__all__ = ["Plan", "TreePair"]

_ONE_ROOT_HOSTS_MAX = 10


@dataclass(frozen=True)
class TreePair:
    """A part of an allreduce: `reduce` sums towards the root, `broadcast` returns the result.

    share: of the tensor's bytes, from 0 to 1. The shares of a plan add up to 1.
    """

    share: Fraction
    reduce: Tree
    broadcast: Tree

    @property
    def root(self) -> int:
        return self.broadcast.root

    @property
    def hops(self) -> int:
        """How many links between hosts the longest way to the root and back has."""
        down = {child: parent for parent, child in self.broadcast.edges}
        return _height(dict(self.reduce.edges)) + _height(down)


class Plan:
    """Everything the planner knows about one topology; each part is computed when it is first read.

    Rates are exact: bytes of the tensor per unit of time, in the units of the topology's capacities.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    @cached_property
    def allreduce(self) -> Fraction:
        """The best rate of an allreduce."""
        return self._allreduce.total * self.topology.unit

    @cached_property
    def allgather(self) -> Fraction:
        """The best rate of an allgather, counted in bytes of its result."""
        return allgather_rates(self.topology).total * self.topology.unit

    @cached_property
    def reducescatter(self) -> Fraction:
        """The best rate of a reducescatter, counted in bytes of its input."""
        return Plan(self._backward).allgather

    def broadcast(self, root: int = 0) -> Fraction:
        """The best rate of a broadcast from the host `root`."""
        return broadcast_rates(self.topology, root).total * self.topology.unit

    @cached_property
    def trees(self) -> list[TreePair]:
        """Trees that carry an allreduce at the rate `allreduce`, the largest share first.

        Of up to 10 hosts they are those of one root, where one suffices: of all such plans the one with the
        shortest way up and down, because a pipeline is empty for so long.
        """
        if self.topology.hosts > _ONE_ROOT_HOSTS_MAX:
            return self._pairs(self._allreduce)
        alone = (allreduce_rates(self.topology, (host,)) for host in range(self.topology.hosts))
        plans = [
            self._pairs(rates) for rates in alone if rates.total == self._allreduce.total
        ] or [self._pairs(self._allreduce)]
        return min(plans, key=lambda pairs: (max(pair.hops for pair in pairs), len(pairs)))

    def _pairs(self, rates: Rates) -> list[TreePair]:
        topology = self.topology
        nodes = len(topology.names)
        down = packed_trees(topology.hosts, nodes, rates.roots, rates.broadcast)
        backward = {edge[::-1]: rate for edge, rate in rates.reduce.items()}
        up = packed_trees(topology.hosts, nodes, rates.roots, backward)
        pairs = [
            TreePair(rate / rates.total, below.reversed(), above)
            for root in rates.roots
            for above, below, rate in _paired(
                [tree for tree in down if tree.root == root],
                [tree for tree in up if tree.root == root],
            )
        ]
        return sorted(pairs, key=lambda pair: (-pair.share, pair.root))

    def broadcast_trees(self, root: int = 0) -> list[Tree]:
        """Trees that carry a broadcast from the host `root` at the rate `broadcast(root)`."""
        return self._forest(broadcast_rates(self.topology, root))

    def reduce_trees(self, root: int = 0) -> list[Tree]:
        """Trees that carry a reduce to the host `root`; edges are (child, parent)."""
        return [tree.reversed() for tree in Plan(self._backward).broadcast_trees(root)]

    def gather_trees(self) -> list[Tree]:
        """Trees that carry an allgather: those of a root carry the part that it brings."""
        return self._forest(allgather_rates(self.topology))

    def scatter_trees(self) -> list[Tree]:
        """Trees that carry a reducescatter: those of a root sum the part that it gets."""
        return [tree.reversed() for tree in Plan(self._backward).gather_trees()]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The order of the hosts on the best ring, from host 0 on."""
        return best_ring_order(self.topology)

    def ring(self, order: tuple[int, ...] | None = None) -> Fraction:
        """The rate of a ring allreduce in `order`; without it in the order of the ranks."""
        return ring_rate(self.topology, order or range(self.topology.hosts)) * self.topology.unit

    @cached_property
    def tree(self) -> Fraction:
        """The rate of the built-in binary tree in the order of the ranks, up and down at the same time."""
        paths = shortest_paths(self.topology)
        loads: dict[Edge, int] = {}
        for host in range(1, self.topology.hosts):
            parent = (host - 1) // 2
            for link in (*paths[host, parent], *paths[parent, host]):
                loads[link] = loads.get(link, 0) + 1
        return rate_of_loads(self.topology, loads) * self.topology.unit

    def to_json(self) -> dict[str, Any]:
        """What `rabitrun plan --json` prints; fractions are texts such as "20/3"."""
        names = self.topology.names
        size = self.topology.hosts

        def named(tree: Tree) -> list[list[str]]:
            return [[names[start], names[end]] for start, end in tree.edges]

        return {
            "topology": self.topology.digest,
            "hosts": list(names[:size]),
            "allreduce": {
                "optimum": str(self.allreduce),
                "ring": str(self.ring()),
                "ring_in_order": str(self.ring(self.order)),
                "tree": str(self.tree),
            },
            "allgather": {"optimum": str(self.allgather)},
            "reducescatter": {"optimum": str(self.reducescatter)},
            "broadcast": {
                "optimum": str(self.broadcast()),
                "root": names[0],
                "roots": {names[root]: str(self.broadcast(root)) for root in range(size)},
            },
            "trees": [
                {
                    "root": names[pair.root],
                    "share": str(pair.share),
                    "reduce": named(pair.reduce),
                    "broadcast": named(pair.broadcast),
                }
                for pair in self.trees
            ],
            "order": [names[host] for host in self.order],
        }

    @cached_property
    def _allreduce(self) -> Rates:
        return allreduce_rates(self.topology)

    @cached_property
    def _backward(self) -> Topology:
        """The network with each link reversed."""
        topology = self.topology
        backward = {edge[::-1]: capacity for edge, capacity in topology.capacity.items()}
        return Topology(topology.names, topology.hosts, backward, topology.unit)

    def _forest(self, rates: Rates) -> list[Tree]:
        topology = self.topology
        return packed_trees(topology.hosts, len(topology.names), rates.roots, rates.broadcast)


def _height(parents: Mapping[int, int]) -> int:
    """Of a tree given by the parent of each node but the root."""
    highest = 0
    for node in parents:
        hops = 0
        while node in parents:
            node, hops = parents[node], hops + 1
        highest = max(highest, hops)
    return highest


def _paired(down: list[Tree], up: list[Tree]) -> Iterator[tuple[Tree, Tree, Fraction]]:
    """Cuts the trees of both lists, whose rates have one sum, into pairs of equal rates."""
    down_left, up_left = [tree.rate for tree in down], [tree.rate for tree in up]
    above = below = 0
    while above < len(down):
        rate = min(down_left[above], up_left[below])
        yield down[above], up[below], rate
        down_left[above] -= rate
        up_left[below] -= rate
        above += not down_left[above]
        below += not up_left[below]
