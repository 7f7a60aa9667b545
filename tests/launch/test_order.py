"""rabitrun --order starts ranks in the order of a plan."""

import json

import pytest
from support.topologies import both_ways

from rabit.errors import InvalidArgument
from rabit.launch.hosts import parse_hosts
from rabit.launch.options.order import in_order
from rabit.planner import Plan, Topology
from rabit.planner.document import described


@pytest.fixture
def plan_file(tmp_path):
    """Of two racks between which four hosts alternate."""
    links = [("a", "s0", 10), ("b", "s1", 10), ("c", "s0", 10), ("d", "s1", 10), ("s0", "s1", 5)]
    topology = Topology.of("abcd", both_ways(links), ["s0", "s1"])
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(described(Plan(topology))))
    return path


def test_hosts_of_a_rack_are_next_to_each_other(plan_file):
    found = in_order(parse_hosts("a:2,b:1,c:1,d:1"), plan_file)

    assert [(host.name, host.slots) for host in found] == [("a", 2), ("b", 1), ("d", 1), ("c", 1)]


@pytest.mark.parametrize(("hosts", "missing"), [("a:1,b:1,c:1", "d"), ("a:1,b:1,c:1,e:1", "d, e")])
def test_a_plan_of_other_hosts_is_refused(plan_file, hosts, missing):
    with pytest.raises(InvalidArgument, match=f"they differ in {missing}"):
        in_order(parse_hosts(hosts), plan_file)
