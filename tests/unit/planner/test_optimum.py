"""The planner's rates are the exact optimum."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from support.topologies import (
    DGX_1P,
    DGX_1V,
    DGX_PARTS,
    KNOWN,
    dgx,
    random_topology,
    slowest_cut,
)

from rabit.errors import InvalidArgument
from rabit.planner import Plan, Topology


@pytest.mark.parametrize("name", KNOWN)
def test_rates_are_those_that_can_be_proved(name):
    known = KNOWN[name]
    plan = Plan(known.topology)

    found = [plan.allgather, plan.allreduce, plan.broadcast()]

    assert found == [
        Fraction(known.allgather),
        Fraction(known.allreduce),
        Fraction(known.broadcast),
    ]


@pytest.mark.parametrize(("box", "members"), DGX_PARTS)
def test_rates_of_parts_of_a_box(box, members):
    plan = Plan(dgx(box, members))

    assert (str(plan.broadcast()), str(plan.allreduce)) == DGX_PARTS[box, members]


def partitions(nodes):
    """Every way to divide `nodes` into parts."""
    if not nodes:
        yield []
        return
    first, rest = nodes[0], nodes[1:]
    for parts in partitions(rest):
        yield [[first], *parts]
        for place, part in enumerate(parts):
            yield [*parts[:place], [first, *part], *parts[place + 1 :]]


def weakest_partition(topology):
    """The most trees that span a graph of two-way links (Nash-Williams and Tutte, 1961)."""
    best = None
    for parts in partitions(list(range(topology.hosts))):
        if len(parts) < 2:
            continue
        part_of = {node: place for place, part in enumerate(parts) for node in part}
        cut = sum(
            c for (a, b), c in topology.capacity.items() if a < b and part_of[a] != part_of[b]
        )
        rate = cut * topology.unit / (len(parts) - 1)
        best = rate if best is None else min(best, rate)
    return best


def allocations(box, size):
    """The connected parts of a box, one of each shape."""
    found = {}
    for members in itertools.combinations("01234567", size):
        try:
            topology = dgx(box, "".join(members))
        except InvalidArgument:  # Not connected.
            continue
        found.setdefault(shape(topology), topology)
    return list(found.values())


def shape(topology):
    """Equal for two topologies whose hosts can be renamed into each other's."""
    size = topology.hosts
    matrix = [
        [topology.capacity.get((a, b), 0) * topology.unit for b in range(size)] for a in range(size)
    ]
    sums = [tuple(sorted(line)) for line in matrix]
    order = sorted(range(size), key=lambda node: sums[node])
    groups = [list(group) for _, group in itertools.groupby(order, key=lambda node: sums[node])]
    return min(
        tuple(matrix[a][b] for a in names for b in names)
        for names in (
            tuple(itertools.chain(*choice))
            for choice in itertools.product(*(itertools.permutations(group) for group in groups))
        )
    )


def has_ring(topology):
    return any(
        all((a, b) in topology.capacity for a, b in zip((0, *order), (*order, 0), strict=True))
        for order in itertools.permutations(range(1, topology.hosts))
    )


@pytest.mark.parametrize(
    ("box", "count", "without_ring"), [(DGX_1V, 46, 21), (DGX_1P, 14, 5)], ids=["DGX-1V", "DGX-1P"]
)
def test_every_allocation_of_a_box_has_the_rate_of_its_weakest_partition(box, count, without_ring):
    found = [topology for size in range(3, 9) for topology in allocations(box, size)]

    assert len(found) == count
    assert sum(not has_ring(topology) for topology in found) == without_ring
    assert [Plan(topology).allreduce for topology in found] == [weakest_partition(t) for t in found]


@pytest.mark.parametrize("seed", range(25))
def test_an_allgather_is_as_fast_as_the_slowest_cut_of_a_random_graph(seed):
    topology = random_topology(seed)

    assert Plan(topology).allgather == slowest_cut(topology)


def test_rates_are_in_the_units_of_the_user():
    links = [("a", "b", 0.1), ("b", "a", 0.1)]

    assert Plan(Topology.of("ab", links)).allreduce == Fraction(1, 10)
