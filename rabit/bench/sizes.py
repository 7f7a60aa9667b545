"""Which cuts and how many lanes are fastest for a large allreduce: part of a tuning run."""

from __future__ import annotations

from collections.abc import Sequence

from rabit.bench.budget import Budget
from rabit.bench.cases import Spec
from rabit.bench.halving import halve, turns_of
from rabit.bench.timing import measure
from rabit.engine.engine import Engine
from rabit.types import DType, Kind

__all__ = ["Tunables", "find_tunables", "propose"]

# Names as `Engine.propose_tunables` takes them; empty: what the engine chooses by itself.
Tunables = tuple[tuple[str, int], ...]

_PARTITIONS = (1 << 20, 4 << 20, 16 << 20)
_LANES = (1, 2)
_TIMED_SHARE = 0.6


def find_tunables(
    engine: Engine, size: int, share_s: float, budget: Budget
) -> tuple[Tunables, float]:
    """The best for an allreduce of `size` bytes, and how many times as fast it is as by itself.

    Takes about `share_s` seconds.  Collective; the result is equal on all ranks.
    Raises Spent when `budget` is over.
    """
    started = engine.config.lanes or _LANES[-1]
    candidates: list[Tunables] = [()]
    candidates += [
        (("partition_bytes", partition), ("lanes", lanes))
        for partition in _PARTITIONS
        if partition < size
        for lanes in _LANES
        if lanes <= started
    ]
    turn_s = _TIMED_SHARE * share_s / turns_of(len(candidates))
    spec = Spec(Kind.ALLREDUCE, size, DType.FLOAT32)

    def run(candidate: Tunables) -> Sequence[float]:
        propose(engine, candidate)
        return budget.turn(
            lambda: measure(engine, spec, longest_s=turn_s, checks=False, is_brief=True)
        ).seconds

    try:
        winner, times = halve(candidates, run, seed=size)
    finally:
        propose(engine, ())
    medians = {each: sorted(found)[len(found) // 2] for each, found in times.items()}
    return winner, medians[()] / medians[winner]


def propose(engine: Engine, tunables: Tunables) -> None:
    """Puts `tunables` in force from the next negotiation on; every rank may call it."""
    if engine.rank != 0 or engine.size == 1:
        return
    engine.reset_tunables()
    if tunables:
        engine.propose_tunables(**dict(tunables))
