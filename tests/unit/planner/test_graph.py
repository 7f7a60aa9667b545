"""A topology file is checked entry by entry."""

from __future__ import annotations

import json

import pytest
from support.topologies import racks

from rabit.errors import InvalidArgument
from rabit.planner import Topology

NODES = [{"name": "a"}, {"name": "b"}, {"name": "s", "switch": True}]
LINKS = [{"a": "a", "b": "s", "capacity": 1}, {"a": "b", "b": "s", "capacity": 1}]


def text(nodes=NODES, links=LINKS, **more):
    return json.dumps({"nodes": nodes, "links": links, **more})


def test_a_link_goes_both_ways_or_one_way():
    given = text(
        NODES[:2], [{"a": "a", "b": "b", "capacity": 10}, {"from": "a", "to": "b", "capacity": 2.5}]
    )

    topology = Topology.from_json(given)

    assert {edge: value * topology.unit for edge, value in topology.capacity.items()} == {
        (0, 1): 12.5,
        (1, 0): 10,
    }


def test_a_topology_is_read_as_it_is_written():
    topology = racks(2, 2, 5)

    assert Topology.from_json(json.dumps(topology.to_json())) == topology


def test_a_digest_names_nodes_and_capacities():
    assert racks(2, 2, 5).digest == racks(2, 2, 5).digest
    assert len({racks(2, 2, 5).digest, racks(2, 2, 6).digest, racks(2, 3, 5).digest}) == 3


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (text()[:40], "net.json: not JSON"),
        ("[]", 'net.json: there is no list "nodes"'),
        (text(links={}), 'no list "links"'),
        (text([{"nam": "a"}]), '"nodes"[0] has no "name"'),
        (text([{"name": "a", "rank": 0}]), "unknown key 'rank'"),
        (text([{"name": "a", "switch": "yes"}]), "expected true or false"),
        (text(unit="Gbit/s"), "unknown key 'unit'"),
        (text([*NODES, NODES[0]]), "'a' is named twice"),
        (text(NODES[:1], []), "1 of the 1 nodes are hosts"),
        (text(links=[*LINKS, {"a": "a", "b": "c", "capacity": 1}]), "'c', which is not a node"),
        (text(links=[*LINKS, {"a": "a", "b": "a", "capacity": 1}]), "from 'a' to itself"),
        (text(links=[*LINKS, {"a": "a", "b": "b"}]), '"links"[2] has the keys a, b'),
        (text(links=[*LINKS, {"a": "a", "to": "b", "capacity": 1}]), '"links"[2]'),
        (text(links=[*LINKS, {"a": 1, "b": "b", "capacity": 1}]), "expected names of nodes"),
        (
            text(links=[*LINKS, {"a": "a", "b": "b", "capacity": 0}]),
            "capacity 0. A capacity is positive",
        ),
        (text(links=[*LINKS, {"a": "a", "b": "b", "capacity": -1}]), "A capacity is positive"),
        (
            text(links=[*LINKS, {"a": "a", "b": "b", "capacity": "1e999999999"}]),
            "expected a number",
        ),
        (text(links=[*LINKS, {"a": "a", "b": "b", "capacity": True}]), "expected a number"),
        (text(links=[*LINKS, {"a": "a", "b": "b", "capacity": float("nan")}]), "expected a number"),
        (text(links=LINKS[:1]), "no path leads from 'a' to 'b'"),
        (
            text(links=[*LINKS[:1], {"from": "b", "to": "s", "capacity": 1}]),
            "no path leads from 'a' to 'b'",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_the_entry(given, part):
    with pytest.raises(InvalidArgument) as caught:
        Topology.from_json(given, "net.json")

    assert part in str(caught.value)
    assert str(caught.value).startswith("net.json: ")
