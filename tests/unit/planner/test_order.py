"""The order of a ring follows the network."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from support.topologies import KNOWN, both_ways, racks

from rabit.planner import Plan, Topology


@pytest.mark.parametrize("name", [name for name, known in KNOWN.items() if known.ring])
def test_a_ring_in_the_order_of_the_racks_has_the_known_rate(name):
    plan = Plan(KNOWN[name].topology)

    assert plan.ring() == Fraction(KNOWN[name].ring)
    assert plan.ring(plan.order) == plan.ring()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("hosts", "rate"), [(8, Fraction(20, 7)), (12, Fraction(30, 11))])
def test_hosts_of_hidden_racks_become_neighbours(hosts, rate, seed):
    rack_of = [place % 2 for place in range(hosts)]
    random.Random(seed).shuffle(rack_of)
    links = [(f"h{host}", f"s{rack}", 10) for host, rack in enumerate(rack_of)] + [("s0", "s1", 5)]
    plan = Plan(Topology.of([f"h{host}" for host in range(hosts)], both_ways(links), ["s0", "s1"]))

    assert plan.ring(plan.order) == rate


def test_an_order_begins_with_the_first_host_and_holds_each_once():
    order = Plan(racks(4, 4, 5)).order

    assert order[0] == 0
    assert sorted(order) == list(range(16))
