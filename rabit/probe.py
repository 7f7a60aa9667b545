"""What the network between the hosts of a job carries, measured by the job itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rabit.engine.engine import Engine
from rabit.ops.collectives import allgather, alltoall, barrier
from rabit.planner.graph import Topology
from rabit.planner.inference import pairs_by_round, topology_from_rates

__all__ = ["Probe", "probe"]

_FIRST_BYTES = 96 << 10
_ROUND_S = 0.08
_BYTES_MAX = 64 << 20
_REPEATS = 2
# A round that takes longer is not repeated: on slow links a busy moment makes less of a difference.
_LONG_S = 0.15
# Below this a longer message does not take longer: the network is not what limits it.
_LONGER = 1.3
_PINGS = 5


@dataclass(frozen=True)
class Probe:
    """What was measured; but for the latency it is equal on all ranks.

    rates: (host, host, Mbit/s each way) while all other hosts exchanged too. latency_us: of a message,
    as this rank's engine has measured it. seconds, bytes_sent: what the probe took, and the most that a host has sent.
    """

    topology: Topology
    rates: tuple[tuple[str, str, float], ...]
    latency_us: float
    seconds: float
    bytes_sent: int

    @property
    def pipeline_bytes(self) -> int:
        """What the median link carries in the time of one message's latency."""
        middle = float(np.median([rate for _, _, rate in self.rates]))
        return int(np.clip(middle / 8 * self.latency_us, 1 << 10, 256 << 10))


def probe(engine: Engine, host_of: Sequence[str]) -> Probe:
    """Measures the network between the hosts of the ranks; collective, of all ranks. Blocks.

    host_of: by rank; at least two hosts. One rank of each host exchanges with one of another host, all pairs at the
    same time, in hosts - 1 rounds (some 4 log2 of them for more than 16 hosts) of some 0.25 s. A busy machine makes a
    link seem slower and never faster, so the best of some repetitions counts.
    """
    began = time.perf_counter()
    names = list(dict.fromkeys(host_of))
    speakers = [host_of.index(name) for name in names]
    prober = _Prober(engine, speakers)
    rounds, latencies = [], []
    for pairs in pairs_by_round(len(names)):
        found, latency = prober.round(pairs)
        rounds.append(found)
        latencies.append(latency)
    latency_us = float(np.median(latencies))
    link = engine.statistics()["backend_details"].get("builtin", {}).get("link", {})
    if link.get("is_measured"):  # Of a message alone, when the engine started; the pings are operations.
        latency_us = min(latency_us, float(link["latency_us"]))
    topology = topology_from_rates(names, rounds)
    rates = tuple((names[a], names[b], rate) for found in rounds for (a, b), rate in found.items())
    took = allgather([time.perf_counter() - began, prober.bytes_sent], name="rabit.probe.end", engine=engine)
    return Probe(topology, rates, latency_us, float(took[0::2].max()), int(took[1::2].max()))


class _Prober:
    """One rank's part in the rounds."""

    def __init__(self, engine: Engine, speakers: list[int]) -> None:
        self.bytes_sent = 0
        self._engine = engine
        self._speakers = speakers
        self._data = np.zeros(_FIRST_BYTES, np.uint8)

    def round(self, pairs: list[tuple[int, int]]) -> tuple[dict[tuple[int, int], float], float]:
        """(pair -> Mbit/s, median latency in microseconds), the same on all ranks."""
        partner = -1
        for pair in pairs:
            ends = [self._speakers[host] for host in pair]
            if self._engine.rank in ends:
                partner = ends[1 - ends.index(self._engine.rank)]
        pings = self._slowest(pairs, min(self._exchange(partner, 1) for _ in range(_PINGS)))
        first = self._slowest(pairs, self._exchange(partner, _FIRST_BYTES))
        sizes = {
            pair: int(min(max(2 * _FIRST_BYTES, _FIRST_BYTES / taken * _ROUND_S), _BYTES_MAX))
            for pair, taken in first.items()
        }
        mine = next((sizes[p] for p in pairs if self._engine.rank in [self._speakers[h] for h in p]), 0)
        taken: list[dict[tuple[int, int], float]] = []
        while len(taken) < _REPEATS and (not taken or max(taken[0].values()) < _LONG_S):
            taken.append(self._slowest(pairs, self._exchange(partner, mine)))
        rates = {}
        for pair, size in sizes.items():
            best = min(seconds[pair] for seconds in taken)
            is_longer = best > _LONGER * first[pair]
            seconds, sent = (best - first[pair], size - _FIRST_BYTES) if is_longer else (best, size)
            rates[pair] = sent * 8e-6 / seconds
        return rates, float(np.median(list(pings.values()))) * 1e6

    def _exchange(self, partner: int, size: int) -> float:
        """Seconds of an exchange with `partner`, both ways; -1: with none."""
        size = size if partner >= 0 else 0
        if self._data.size < size:
            self._data = np.zeros(size, np.uint8)
        splits = [size if rank == partner else 0 for rank in range(self._engine.size)]
        barrier(name="rabit.probe.begin", engine=self._engine)
        began = time.perf_counter()
        alltoall(self._data[:size], splits, name="rabit.probe", engine=self._engine)
        self.bytes_sent += size
        return time.perf_counter() - began

    def _slowest(self, pairs: list[tuple[int, int]], taken: float) -> dict[tuple[int, int], float]:
        """What the slower of each pair took."""
        by_rank = allgather([taken], name="rabit.probe.taken", engine=self._engine)
        return {pair: max(float(by_rank[self._speakers[host]]) for host in pair) for pair in pairs}
