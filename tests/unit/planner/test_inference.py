"""Networks are found from rates of pairs; what pairs get is simulated by max-min fairness."""

import random

import pytest
from support.topologies import racks, star

from rabit.errors import InvalidArgument
from rabit.planner import Plan
from rabit.planner.inference import pairs_by_round, topology_from_rates
from rabit.planner.order import shortest_paths


def shares(topology, pairs):
    """What each pair gets while all send both ways: every flow grows until a link of its is full."""
    paths = shortest_paths(topology)
    flows = {pair: (*paths[pair], *paths[pair[::-1]]) for pair in pairs}
    left = {link: float(capacity * topology.unit) for link, capacity in topology.capacity.items()}
    found = {}
    while len(found) < len(flows):
        users = {link: [p for p, path in flows.items() if link in path and p not in found] for link in left}
        full = min((link for link in left if users[link]), key=lambda link: left[link] / len(users[link]))
        share = left[full] / len(users[full])
        for pair in users[full]:
            found[pair] = share
            for link in flows[pair]:
                left[link] -= share
    return found


def measured(topology, noise=0.0, seed=0):
    choose = random.Random(seed)
    return [
        {pair: rate * (1 - noise * choose.random()) for pair, rate in shares(topology, pairs).items()}
        for pairs in pairs_by_round(topology.hosts)
    ]


def shuffled(topology, seed):
    """The same network with its hosts in another order."""
    order = random.Random(seed).sample(range(topology.hosts), topology.hosts)
    place = {old: new for new, old in enumerate(order)} | {
        node: node for node in range(topology.hosts, len(topology.names))
    }
    capacity = {(place[a], place[b]): value for (a, b), value in topology.capacity.items()}
    return type(topology)(topology.names, topology.hosts, capacity, topology.unit)


NETWORKS = {
    "star": star(*[10] * 8),
    "slow host": star(5, *[10] * 7),
    "two slow hosts": star(5, 5, 10, 10),
    "racks, thin": racks(2, 4, 5),
    "racks, very thin": racks(2, 4, 2),
    "racks, half": racks(2, 4, 20),
    "small racks": racks(2, 2, 5),
    "four racks": racks(4, 2, 5),
}


@pytest.mark.parametrize("hosts", [2, 3, 5, 8, 16, 40])
def test_every_host_has_one_partner_in_a_round(hosts):
    rounds = pairs_by_round(hosts)

    for pairs in rounds:
        members = [host for pair in pairs for host in pair]
        assert len(members) == len(set(members)) == hosts - hosts % 2
    if hosts <= 16:
        assert len({pair for pairs in rounds for pair in pairs}) == hosts * (hosts - 1) // 2
    else:
        assert len(rounds) <= 8 * hosts.bit_length()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("noise", [0.0, 0.08])
def test_a_plan_of_what_was_found_is_as_good_as_one_of_the_truth(name, noise):
    truth = NETWORKS[name]
    for seed in range(2):
        placed = shuffled(truth, seed)
        found = topology_from_rates(placed.names[: placed.hosts], measured(placed, noise, seed))

        assert abs(float(Plan(found).allreduce / Plan(placed).allreduce) - 1) < 0.15
        assert float(Plan(placed).ring(Plan(found).order) / Plan(placed).ring(Plan(placed).order)) > 0.95


def test_a_shared_uplink_is_found_that_no_pair_alone_would_show():
    found = topology_from_rates([f"h{i}" for i in range(8)], measured(racks(2, 4, 20)))

    switches = [name for name in found.names if name.startswith("switch")]
    assert len(switches) == 2
    uplink = found.capacity[found.names.index("switch0"), found.names.index("switch1")] * found.unit
    assert abs(float(uplink) / 20 - 1) < 0.15


def test_a_host_without_a_rate_is_named():
    with pytest.raises(InvalidArgument, match="no rate for h2"):
        topology_from_rates(["h0", "h1", "h2"], [{(0, 1): 5.0}])
