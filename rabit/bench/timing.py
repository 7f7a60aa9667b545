"""How long a case takes: many calls, each begun together, each as slow as its slowest rank."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.bench.cases import Case, Spec, bus_factor
from rabit.engine.engine import Engine
from rabit.ops.collectives import allgather, allreduce
from rabit.ops.ordered import ordered_barrier
from rabit.types import Max, Sum

__all__ = ["Figures", "measure"]

_WARM_UP_CALLS, _BRIEF_WARM_UP_CALLS = 2, 1
_FEWEST_CALLS, _BRIEF_FEWEST_CALLS, _MOST_CALLS = 5, 2, 2000


@dataclass(frozen=True)
class Figures:
    """What one row of the table says.  seconds: of every timed call, of its slowest rank."""

    spec: Spec
    size: int
    count: int
    bytes: int
    seconds: tuple[float, ...]
    wrong: int | None  # None: not checked
    route: str

    def with_seconds(self, seconds: tuple[float, ...]) -> Figures:
        return dataclasses.replace(self, seconds=seconds)

    @property
    def p50_us(self) -> float:
        return statistics.median(self.seconds) * 1e6

    @property
    def p95_us(self) -> float:
        ranked = sorted(self.seconds)
        return ranked[math.ceil(0.95 * len(ranked)) - 1] * 1e6

    @property
    def algbw(self) -> float:
        """GB/s, of 10^9 bytes."""
        return self.bytes / self.p50_us / 1e3

    @property
    def busbw(self) -> float:
        return self.algbw * bus_factor(self.spec.kind, self.size)


def measure(
    engine: Engine,
    spec: Spec,
    *,
    calls: int = 0,
    longest_s: float = 0.3,
    checks: bool = True,
    is_brief: bool = False,
    in_flight: int = 1,
) -> Figures:
    """Times `spec` on all ranks of `engine`, which call this together.  Blocks.

    calls: how many are timed; 0: as many as fit in about `longest_s`, but some at least.
    is_brief: one of many turns of the same: the fewest calls that will do, and nothing is checked twice.  One that
        takes longer than `longest_s` is not repeated.
    in_flight: how many begin together, each on buffers of its own, and a call is over when all are.
    The figures are equal on all ranks.
    """
    cases = [Case(spec, engine) for _ in range(in_flight)]
    name = f"bench.{spec.kind}.{spec.dtype}.{spec.op}.{spec.backend}.{spec.bytes}"
    batch = engine.prepare(
        [case.request(f"{name}.{place}", engine) for place, case in enumerate(cases)]
    )

    def call() -> None:
        if in_flight == 1:
            batch.run().wait()
            return
        for each in batch.submit():
            each.wait()

    before = _routes(engine)
    wrong = _checked(cases, call) if checks else 0
    route = _route_since(before, _routes(engine), str(spec.kind))
    for each in cases:
        each.prepare(False)
    once = 0.0
    for _ in range(_BRIEF_WARM_UP_CALLS if is_brief else _WARM_UP_CALLS):
        once = _timed(engine, call)
    if calls == 0:
        slowest = float(allreduce(np.array([once]), op=Max, engine=engine)[0])
        fewest = _BRIEF_FEWEST_CALLS if is_brief else _FEWEST_CALLS
        calls = max(fewest, min(_MOST_CALLS, int(longest_s / max(slowest, 1e-7))))
        if is_brief and slowest > longest_s:
            calls = 0
    mine = np.array([_timed(engine, call) for _ in range(calls)] or [once])
    everyone = allgather(mine, engine=engine).reshape(engine.size, mine.size)
    if checks:
        wrong += 0 if is_brief else _checked(cases, call)
        wrong = int(allreduce(np.array([wrong], np.int64), op=Sum, engine=engine)[0])
    return Figures(
        spec,
        engine.size,
        cases[0].count,
        cases[0].bytes,
        tuple(everyone.max(axis=0).tolist()),
        wrong if checks else None,
        route,
    )


def _timed(engine: Engine, call: Any) -> float:
    # A root may run ahead of what its peers have received: start together.
    ordered_barrier(engine=engine)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _checked(cases: Sequence[Case], call: Any) -> int:
    for each in cases:
        each.prepare(True)
    call()
    return sum(case.wrong() for case in cases)


def _routes(engine: Engine) -> Mapping[tuple[str, str], int]:
    """Exchanges of each executor and algorithm so far, by kind."""
    found: dict[tuple[str, str], int] = {}
    for row in engine.statistics()["routes"]:
        key = (row["kind"], f"{row['backend']}/{row['algorithm']}")
        found[key] = found.get(key, 0) + row["exchanges"]
    return found


def _route_since(
    before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int], kind: str
) -> str:
    """Who has run exchanges of `kind` meanwhile; "agreement" where the negotiation did it all."""
    ran = [key[1] for key in after if key[0] == kind and after[key] > before.get(key, 0)]
    return " ".join(ran) or "agreement"
