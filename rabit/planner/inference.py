"""A network from what pairs of hosts exchanged while all other hosts exchanged too.

In each round every host has one partner, and all pairs send both ways at the same time. Hosts between which
everything went as fast as their own links allow stand in one rack. What racks exchanged is the capacity of the links
between them: one pair at a time would not show links that several hosts share.

Sources: Luo et al., Cloud Collectives: Towards Cloud-aware Collectives for ML Workloads with Rank Reordering (2021);
Luo et al., PLink: Discovering and Exploiting Locality for Accelerated Distributed Training (2020).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import median

from rabit.errors import InvalidArgument
from rabit.planner.graph import Topology

__all__ = ["Rounds", "pairs_by_round", "topology_from_rates"]

# By round: (host, host) with host < host -> Mbit/s each way.
Rounds = Sequence[Mapping[tuple[int, int], float]]

# All pairs meet in a job of up to so many hosts; of more, every host meets some four times log2 of all.
_ALL_PAIRS_HOSTS_MAX = 16
_FAST = 0.8  # of the slower host's link
_FAST_PAIRS = 0.8  # of the pairs between two racks that are one
# Links that differ by less are one kind, whose median counts: noise makes no slow host.
_ALIKE = 0.15
_UNITS = 20  # in the median link: whole numbers of a coarse unit have few trees


def pairs_by_round(hosts: int) -> list[list[tuple[int, int]]]:
    """The pairs of each round: hosts - 1 rounds, or hosts for an odd number, or a part of them for many hosts."""
    even = hosts + hosts % 2
    rounds = []
    for turn in range(even - 1):
        pairs = [(even - 1, turn)]
        pairs += [((turn + step) % (even - 1), (turn - step) % (even - 1)) for step in range(1, even // 2)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < hosts])
    if hosts <= _ALL_PAIRS_HOSTS_MAX:
        return rounds
    wanted = 4 * (hosts - 1).bit_length()
    return rounds[:: max(1, len(rounds) // wanted)]


def topology_from_rates(names: Sequence[str], rounds: Rounds) -> Topology:
    """Hosts `names`, a switch for each rack of several hosts, and a spine where there are three or more.

    Capacities are Mbit/s, rounded to a twentieth of the median host's. Raises InvalidArgument if a host was in no
    pair, or a rate is not positive.
    """
    rate = {pair: value for found in rounds for pair, value in found.items()}
    own = [max((v for pair, v in rate.items() if host in pair), default=0.0) for host in range(len(names))]
    if min([*own, *rate.values()]) <= 0:
        raise InvalidArgument(
            f"the probe of {', '.join(names)} has no rate for {names[own.index(min(own))]}. Probe again."
        )
    own = _alike(own)
    racks = _racks(len(names), rate, own)
    unit = _unit(median(own))
    links = []
    switches = [f"switch{place}" for place in range(len(racks))]
    for rack, switch in zip(racks, switches, strict=True):
        links += [(names[host], switch, _whole(own[host], unit)) for host in rack]
    uplinks = _alike([_uplink(rack, rounds) for rack in racks])
    if len(racks) == 2:
        # A rack of one host has no uplink but its own link.
        of_several = [up for up, rack in zip(uplinks, racks, strict=True) if len(rack) > 1] or uplinks
        links.append((switches[0], switches[1], _whole(min(of_several), unit)))
    elif len(racks) > 2:
        switches.append("spine")
        links += [
            (switch, "spine", _whole(up, unit)) for switch, up in zip(switches, uplinks, strict=False)
        ]
    both = [way for a, b, capacity in links for way in ((a, b, capacity), (b, a, capacity))]
    return Topology.of(names, both, switches)


def _racks(hosts: int, rate: Mapping[tuple[int, int], float], own: Sequence[float]) -> list[list[int]]:
    """Joins racks while most pairs between two of them are fast, the closest first."""
    fast = {pair: value >= _FAST * min(own[host] for host in pair) for pair, value in rate.items()}
    racks = [[host] for host in range(hosts)]
    while True:
        best, joined = _FAST_PAIRS, None
        for first, second in itertools.combinations(racks, 2):
            met = [
                fast[min(a, b), max(a, b)] for a in first for b in second if (min(a, b), max(a, b)) in fast
            ]
            share = sum(met) / len(met) if met else 0.0
            if share >= best and (joined is None or share > best):
                best, joined = share, (first, second)
        if joined is None:
            return sorted(racks)
        racks = [rack for rack in racks if rack not in joined] + [sorted(joined[0] + joined[1])]


def _uplink(rack: Sequence[int], rounds: Rounds) -> float:
    """The most that the rack exchanged with others in a round."""
    return max(
        sum(value for pair, value in found.items() if (pair[0] in rack) != (pair[1] in rack)) for found in rounds
    )


def _alike(values: Sequence[float]) -> list[float]:
    """Each value, or the median of those that are within `_ALIKE` of the largest of their kind."""
    found = dict.fromkeys(range(len(values)), 0.0)
    left = sorted(range(len(values)), key=lambda place: -values[place])
    while left:
        kind = [place for place in left if values[place] >= values[left[0]] * (1 - _ALIKE)]
        for place in kind:
            found[place] = median(values[each] for each in kind)
        left = left[len(kind) :]
    return [found[place] for place in range(len(values))]


def _unit(middle: float) -> float:
    """A twentieth of `middle`, with two digits."""
    return float(f"{middle / _UNITS:.2g}")


def _whole(value: float, unit: float) -> str:
    """The nearest positive multiple of `unit`, as a decimal number."""
    return f"{max(1, round(value / unit)) * unit:.12g}"
