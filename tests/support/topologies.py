"""Networks whose best rates are known exactly, and random ones."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from typing import NamedTuple

from rabit.planner import Topology

DGX_1V = "01:1 02:1 03:2 04:2 12:2 13:1 15:2 23:2 26:1 37:1 45:1 46:1 47:2 56:2 57:1 67:2"
DGX_1P = "01:1 02:1 03:1 12:1 13:1 23:1 45:1 46:1 47:1 56:1 57:1 67:1 04:1 15:1 26:1 37:1"


class Known(NamedTuple):
    """A topology and its best rates, in the units of the links."""

    topology: Topology
    allgather: str
    allreduce: str
    broadcast: str
    ring: str


def both_ways(links):
    return [way for a, b, capacity in links for way in ((a, b, capacity), (b, a, capacity))]


def star(*capacities):
    hosts = [f"h{rank}" for rank in range(len(capacities))]
    return Topology.of(
        hosts, both_ways((h, "s", c) for h, c in zip(hosts, capacities, strict=True)), ["s"]
    )


def racks(count, hosts_each, uplink, slow_host=None):
    """Racks of hosts with links of 10: two with a link between them, more than two below a spine."""
    hosts = [f"h{rank}" for rank in range(count * hosts_each)]
    switches = [f"s{rack}" for rack in range(count)]
    links = [
        (host, switches[rank // hosts_each], slow_host if rank == 0 and slow_host else 10)
        for rank, host in enumerate(hosts)
    ]
    if count == 2:
        links.append(("s0", "s1", uplink))
    else:
        links += [(switch, "spine", uplink) for switch in switches]
        switches.append("spine")
    return Topology.of(hosts, both_ways(links), switches)


def direct(size, pairs):
    """Hosts with links of capacity 1 between them, or of the third number of a pair."""
    links = [(str(pair[0]), str(pair[1]), pair[2] if len(pair) > 2 else 1) for pair in pairs]
    return Topology.of(map(str, range(size)), both_ways(links))


def dgx(links, members):
    """The hosts `members` of a box described as DGX_1V is."""
    number = {int(member): place for place, member in enumerate(members)}
    pairs = [(int(link[0]), int(link[1]), int(link[3])) for link in links.split()]
    return direct(
        len(number), [(number[a], number[b], c) for a, b, c in pairs if a in number and b in number]
    )


def line(size):
    return direct(size, [(rank, rank + 1) for rank in range(size - 1)])


def circle(size):
    return direct(size, [(rank, (rank + 1) % size) for rank in range(size)])


def complete(size):
    return direct(size, itertools.combinations(range(size), 2))


def torus(side):
    pairs = []
    for row, column in itertools.product(range(side), repeat=2):
        here = side * row + column
        pairs += [
            (here, side * ((row + 1) % side) + column),
            (here, side * row + (column + 1) % side),
        ]
    return direct(side * side, pairs)


def uneven_triangle():
    forth = [("0", "1", 10), ("1", "2", 10), ("2", "0", 10)]
    return Topology.of("012", forth + [(b, a, 2) for a, b, _ in forth])


KNOWN = {
    "star of 4": Known(star(10, 10, 10, 10), "40/3", "20/3", "10", "20/3"),
    "star of 8": Known(star(*[10] * 8), "80/7", "40/7", "10", "40/7"),
    "star of 4, one slow": Known(star(5, 10, 10, 10), "20/3", "5", "5", "10/3"),
    "star of 4, two slow": Known(star(5, 5, 10, 10), "20/3", "5", "5", "10/3"),
    "star of 8, one slow": Known(star(5, *[10] * 7), "40/7", "5", "5", "20/7"),
    "star of 8, one very slow": Known(star(1, *[10] * 7), "8/7", "1", "1", "4/7"),
    "2 racks of 2, uplink 10": Known(racks(2, 2, 10), "40/3", "20/3", "10", "20/3"),
    "2 racks of 2, uplink 5": Known(racks(2, 2, 5), "10", "5", "5", "10/3"),
    "2 racks of 4, uplink 20": Known(racks(2, 4, 20), "80/7", "40/7", "10", "40/7"),
    "2 racks of 4, uplink 10": Known(racks(2, 4, 10), "80/7", "40/7", "10", "40/7"),
    "2 racks of 4, uplink 5": Known(racks(2, 4, 5), "10", "5", "5", "20/7"),
    "2 racks of 4, uplink 2": Known(racks(2, 4, 2), "4", "2", "2", "8/7"),
    "4 racks of 2, uplink 10": Known(racks(4, 2, 10), "80/7", "40/7", "10", "40/7"),
    "4 racks of 2, uplink 5": Known(racks(4, 2, 5), "20/3", "10/3", "5", "20/7"),
    "2 racks of 4, a slow host": Known(racks(2, 4, 10, slow_host=2), "16/7", "2", "2", "8/7"),
    "DGX-1V": Known(dgx(DGX_1V, "01234567"), "48/7", "24/7", "6", ""),
    "DGX-1P": Known(dgx(DGX_1P, "01234567"), "32/7", "16/7", "4", ""),
    "circle of 4": Known(circle(4), "8/3", "4/3", "2", ""),
    "circle of 8": Known(circle(8), "16/7", "8/7", "2", ""),
    "line of 4": Known(line(4), "4/3", "1", "1", "2/3"),
    "line of 8": Known(line(8), "8/7", "1", "1", "4/7"),
    "complete, 4": Known(complete(4), "4", "2", "3", ""),
    "complete, 8": Known(complete(8), "8", "4", "7", ""),
    "torus 3 x 3": Known(torus(3), "9/2", "9/4", "4", ""),
    "torus 4 x 4": Known(torus(4), "64/15", "32/15", "4", ""),
    "uneven triangle": Known(uneven_triangle(), "18", "9", "12", "15/2"),
}
DGX_PARTS = {
    (DGX_1V, "012"): ("2", "2"),
    (DGX_1V, "023"): ("3", "5/2"),
    (DGX_1V, "014"): ("1", "1"),
    (DGX_1V, "034"): ("2", "2"),
    (DGX_1V, "0123"): ("4", "3"),
    (DGX_1V, "0347"): ("3", "7/3"),
    (DGX_1V, "02347"): ("3", "5/2"),
    (DGX_1V, "012345"): ("3", "5/2"),
    (DGX_1V, "0123456"): ("4", "3"),
    (DGX_1P, "0123"): ("3", "2"),
    (DGX_1P, "014"): ("1", "1"),
    (DGX_1P, "0123456"): ("3", "2"),
}


def random_topology(seed):
    """4 to 10 hosts and 0 to 3 switches: one-way links between hosts, and circles through the switches.

    A circle takes as much into a switch as out of it.
    """
    choose = random.Random(seed)
    hosts = [f"h{rank}" for rank in range(choose.randint(4, 10))]
    switches = [f"s{place}" for place in range(choose.randint(0, 3))]
    order = choose.sample(hosts, len(hosts))
    links = [
        (a, b, choose.randint(1, 9)) for a, b in zip(order, order[1:] + order[:1], strict=True)
    ]
    for _ in range(choose.randint(0, 2 * len(hosts))):
        links.append((*choose.sample(hosts, 2), choose.randint(1, 9)))
    for switch in switches:
        for _ in range(choose.randint(1, 3)):
            stops = [switch, *choose.sample(hosts, choose.randint(1, 4))]
            capacity = choose.randint(1, 9)
            links += [(a, b, capacity) for a, b in zip(stops, stops[1:] + stops[:1], strict=True)]
    return Topology.of(hosts, links, switches)


def slowest_cut(topology):
    """The allgather's best rate by trying every cut: hosts * the least of (links out / hosts inside)."""
    nodes = len(topology.names)
    best = None
    for side in itertools.product((False, True), repeat=nodes):
        inside = sum(side[: topology.hosts])
        if not 0 < inside < topology.hosts:
            continue
        out = sum(
            c for (start, end), c in topology.capacity.items() if side[start] and not side[end]
        )
        rate = Fraction(out, inside)
        best = rate if best is None else min(best, rate)
    return best * topology.hosts * topology.unit
