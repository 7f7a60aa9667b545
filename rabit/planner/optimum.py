"""How fast a collective can be on a network at most, exactly, and which capacity it takes of each link.

Every byte of an allreduce is summed along a tree towards some host and then leaves it along a tree. The
rates of those trees are a linear programme over the links' capacities: a flow of the whole rate reaches
every host (Edmonds, Edge-Disjoint Branchings, 1973), what enters a switch leaves it, and both directions
share the links. Its cuts are added as they are found to be violated.

Sources: Zhao et al., ForestColl: Throughput-Optimal Collective Communications on Heterogeneous Network
Fabrics (2024); Wang et al., Blink: Fast and Generic Collectives for Distributed ML (2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from rabit.errors import Internal
from rabit.planner.flow import FlowGraph
from rabit.planner.graph import Topology
from rabit.planner.program import LinearProgram, Row

__all__ = ["Rates", "allgather_rates", "allreduce_rates", "broadcast_rates"]

Edge = tuple[int, int]

_ROUNDS_MAX = 200
_STEPS = 1 << 40  # Floating-point rates become integers of at most about this size for a flow.
# Of the widest link: bounds are perturbed by less. What is smaller shows in exact numbers.
_VIOLATION = 2e-6


@dataclass(frozen=True)
class Rates:
    """The optimum of one collective. All values are in the topology's integer units.

    total: bytes of the result that become complete on every host per unit of time. roots: the part of
    `total` whose trees begin at each host. broadcast, reduce: what the trees take of each link; `reduce`
    is empty where nothing is summed.
    """

    total: Fraction
    roots: dict[int, Fraction]
    broadcast: dict[Edge, Fraction]
    reduce: dict[Edge, Fraction]


def allreduce_rates(topology: Topology, roots: Sequence[int] | None = None) -> Rates:
    """The best rates of an allreduce, by trees with these roots; None: with any.

    Takes milliseconds for ten hosts, up to a second for forty nodes.
    """
    hosts = range(topology.hosts) if roots is None else roots
    return _rates(topology, [(host,) for host in hosts], sums=True)


def allgather_rates(topology: Topology) -> Rates:
    """The best rates of an allgather of equal parts; reducescatter has the same in the other direction."""
    return _rates(topology, [tuple(range(topology.hosts))], sums=False)


def broadcast_rates(topology: Topology, root: int = 0) -> Rates:
    """The best rates of a broadcast from the host `root`; a reduce has those of the reversed links."""
    return _rates(topology, [(root,)], sums=False)


class _Variables:
    """Where each quantity stands among the variables of the programme."""

    def __init__(self, topology: Topology, sources: Sequence[tuple[int, ...]], sums: bool) -> None:
        self.sources = sources
        self.edges = list(topology.capacity)
        self.broadcast = {edge: len(sources) + place for place, edge in enumerate(self.edges)}
        after = len(sources) + len(self.edges)
        # A reduction tree is a broadcast tree of the reversed graph.
        self.reduce = {
            (end, start): after + place
            for place, (start, end) in enumerate(self.edges if sums else [])
        }
        self.count = after + len(self.reduce)

    @property
    def ways(self) -> list[dict[Edge, int]]:
        return [self.broadcast, self.reduce] if self.reduce else [self.broadcast]

    def cut(self, way: dict[Edge, int], side: set[int]) -> Row:
        """What starts on the hosts of `side` has to leave it: sources inside - links out <= 0."""
        row: Row = {}
        for place, hosts in enumerate(self.sources):
            inside = sum(host in side for host in hosts)
            if inside:
                row[place] = inside
        for (start, end), variable in way.items():
            if start in side and end not in side:
                row[variable] = -1
        return row


def _rates(topology: Topology, sources: Sequence[tuple[int, ...]], sums: bool) -> Rates:
    variables = _Variables(topology, sources, sums)
    allowed = _VIOLATION * max(topology.capacity.values()) * _STEPS
    program = LinearProgram(
        [len(hosts) for hosts in sources] + [0] * (variables.count - len(sources)),
        _first_rows(topology, variables),
    )
    for _ in range(_ROUNDS_MAX):
        rates = [round(value * _STEPS) for value in program.solve()]
        found = _violated(topology, variables, rates, allowed)
        if not found:
            exact = program.exact()
            if exact is None:
                program = program.again()
                continue
            scale = math.lcm(*(value.denominator for value in exact))
            rates = [int(value * scale) for value in exact]
            found = _violated(topology, variables, rates, 0)
            if not found:
                return _as_rates(variables, exact)
        for row in found:
            program.add(row, 0)
    raise Internal(
        f"the planner found no exact optimum for the topology {topology.digest}. Report this with it."
    )


def _first_rows(topology: Topology, variables: _Variables) -> list[tuple[Row, int]]:
    rows: list[tuple[Row, int]] = []
    for edge, capacity in topology.capacity.items():
        row: Row = {variables.broadcast[edge]: 1}
        if variables.reduce:
            row[variables.reduce[edge[::-1]]] = 1
        rows.append((row, capacity))
    everything = set(range(len(topology.names)))
    for way in variables.ways:
        for switch in range(topology.hosts, len(topology.names)):
            balance: Row = {}
            for (start, end), variable in way.items():
                if switch in (start, end):
                    balance[variable] = 1 if end == switch else -1
            rows += [(balance, 0), ({variable: -sign for variable, sign in balance.items()}, 0)]
        for host in range(topology.hosts):
            rows += [(variables.cut(way, {host}), 0), (variables.cut(way, everything - {host}), 0)]
    return rows


def _violated(
    topology: Topology, variables: _Variables, rates: list[int], allowed: float
) -> list[Row]:
    """The cuts that keep more than `allowed` of the whole rate from some host, each once."""
    cuts: dict[tuple[int, frozenset[int]], Row] = {}
    total = sum(rates[place] * len(hosts) for place, hosts in enumerate(variables.sources))
    source = len(topology.names)
    for number, way in enumerate(variables.ways):
        graph = FlowGraph(source + 1, ((*edge, rates[variable]) for edge, variable in way.items()))
        for place, hosts in enumerate(variables.sources):
            for host in hosts:
                graph.add(source, host, rates[place])
        for host in range(topology.hosts):
            if graph.flow(source, host) < total - allowed:
                side = graph.source_side(source) - {source}
                cuts[number, frozenset(side)] = variables.cut(way, side)
    return list(cuts.values())


def _as_rates(variables: _Variables, values: list[Fraction]) -> Rates:
    roots = {
        host: values[place]
        for place, hosts in enumerate(variables.sources)
        for host in hosts
        if values[place]
    }
    return Rates(
        sum(roots.values(), Fraction(0)),
        roots,
        {
            edge: values[variable]
            for edge, variable in variables.broadcast.items()
            if values[variable]
        },
        {
            edge[::-1]: values[variable]
            for edge, variable in variables.reduce.items()
            if values[variable]
        },
    )
