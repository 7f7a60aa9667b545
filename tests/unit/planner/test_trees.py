"""The planner's trees span every host, carry the optimum, and overload no link."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from support.topologies import KNOWN, random_topology

from rabit.planner import Plan


def reached_by(tree, hosts):
    reached = {tree.root}
    for parent, child in tree.edges:
        assert parent in reached
        assert child not in reached
        reached.add(child)
    return reached == set(range(hosts))


def add_loads(loads, edges, tree, rate):
    for edge in edges:
        paths = tree.paths[edge]
        whole = sum(part for _, part in paths)
        for path, part in paths:
            assert (path[0], path[-1]) == edge
            for link in itertools.pairwise(path):
                loads[link] = loads.get(link, Fraction(0)) + rate * part / whole


def check(topology):
    plan = Plan(topology)
    loads = {}
    for pair in plan.trees:
        assert reached_by(pair.broadcast, topology.hosts)
        assert reached_by(pair.reduce.reversed(), topology.hosts)
        assert pair.reduce.root == pair.root
        rate = pair.share * plan.allreduce / topology.unit
        for tree in (pair.broadcast, pair.reduce):
            add_loads(loads, tree.edges, tree, rate)
    assert sum(pair.share for pair in plan.trees) == 1
    for link, load in loads.items():
        assert load <= topology.capacity[link]
    assert max(load / topology.capacity[link] for link, load in loads.items()) == 1


@pytest.mark.parametrize("name", KNOWN)
def test_trees_carry_the_optimum_of_a_known_network(name):
    check(KNOWN[name].topology)


@pytest.mark.parametrize("seed", range(25))
def test_trees_carry_the_optimum_of_a_random_graph(seed):
    check(random_topology(seed))
