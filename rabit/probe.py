"""What the network between the hosts of a job carries, measured by the job itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rabit.engine.engine import Engine
from rabit.planner.graph import Topology
from rabit.planner.inference import pairs_by_round, topology_from_rates

__all__ = ["Probe", "probe"]


@dataclass(frozen=True)
class Probe:
    """What was measured; but for the seconds it is equal on all ranks.

    rates: (host, host, Mbit/s each way) while all other hosts exchanged too. seconds, bytes_sent: what the probe took,
    and the most that a host has sent.
    """

    topology: Topology
    rates: tuple[tuple[str, str, float], ...]
    seconds: float
    bytes_sent: int


def probe(engine: Engine, host_of: Sequence[str]) -> Probe:
    """Measures the network between the hosts of the ranks; collective, of all ranks. Blocks.

    host_of: by rank; at least two hosts. One rank of each host exchanges with one of another host, all pairs at the
    same time, in hosts - 1 rounds (some 4 log2 of them for more than 16 hosts) of some 0.25 s.
    """
    began = time.perf_counter()
    names = list(dict.fromkeys(host_of))
    speakers = [host_of.index(name) for name in names]
    pairs = [(turn, *pair) for turn, met in enumerate(pairs_by_round(len(names))) for pair in met]
    both_ways = [(turn, *ends) for turn, a, b in pairs for ends in ((a, b), (b, a))]
    found = engine.flow_rates([(turn, speakers[a], speakers[b]) for turn, a, b in both_ways])
    rounds: list[dict[tuple[int, int], float]] = [{} for _ in range(1 + max(turn for turn, _, _ in pairs))]
    for (turn, a, b), (there, _), (back, _) in zip(pairs, found[0::2], found[1::2], strict=True):
        rounds[turn][a, b] = min(there, back) * 8e-6
    sent = [0.0] * len(names)
    for (_, a, _), (_, size) in zip(both_ways, found, strict=True):
        sent[a] += size
    rates = tuple((names[a], names[b], rate) for met in rounds for (a, b), rate in met.items())
    seconds = time.perf_counter() - began
    return Probe(topology_from_rates(names, rounds), rates, seconds, int(max(sent)))
