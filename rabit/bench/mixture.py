"""Mixture: a step with operations of all kinds and sizes in flight, which a table has to speed up.

Calls that are measured one at a time say nothing of what threads of several backends take from each
other.  So a table that mixes backends is played, beside the same table for one backend alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from rabit.bench.budget import Budget
from rabit.bench.cases import Case, Spec
from rabit.bench.halving import DUEL_TURNS, duel
from rabit.bench.sizes import Tunables, propose
from rabit.bench.winners import Candidate, Winner, rules_of
from rabit.engine.engine import Engine
from rabit.errors import Internal
from rabit.ops.collectives import allreduce
from rabit.ops.ordered import ordered_barrier
from rabit.types import Kind, Max

__all__ = ["alternatives", "choose", "play", "specs_of"]

# Engines of a job are told apart by their number; those of Contestants are near 1 << 20.
_FIRST_EPOCH = 1 << 22
# Larger ones are cut, and several of their parts are in flight when they were measured alone.
_LONGEST_BYTES = 1 << 20
# What programs compute with next; they wait for the others, gradients, when the step ends.
_AWAITED = (Kind.ALLGATHER, Kind.ALLTOALL, Kind.BROADCAST)
_TIMED_SHARE = 0.6
_FEWEST_CALLS, _MOST_CALLS = 2, 50


def alternatives(winners: Sequence[Winner], backends: Sequence[str]) -> dict[str, list[Winner]]:
    """Those of each backend alone, the job's own first, and last the winners as they are, "mix".

    Where another backend has won, a backend alone chooses by itself.  Where one has won everywhere, its table is the
    last, and none is called "mix".  Empty if that is the job's own.
    """
    if {winner.candidate.backend for winner in winners} <= set(backends[:1]):
        return {}
    found = {
        backend: [
            winner
            if winner.candidate.backend == backend
            else Winner(winner.kind, winner.dtype, winner.bytes, Candidate(backend))
            for winner in winners
        ]
        for backend in backends
    }
    same = next((name for name, each in found.items() if each == list(winners)), "mix")
    found.pop(same, None)
    return {**found, same: list(winners)}


def specs_of(specs: Sequence[Spec]) -> list[Spec]:
    """What a step consists of: those of `specs`, by size, that are not too long to matter."""
    # A table of large sizes only is played with the least of them.
    longest = max(_LONGEST_BYTES, min(spec.bytes for spec in specs))
    fitting = [spec for spec in specs if spec.bytes <= longest]
    return sorted(fitting, key=lambda each: (each.bytes, each.kind))


def play(
    base: Engine,
    tables: Mapping[str, Sequence[Winner]],
    specs: Sequence[Spec],
    share_s: float,
    tunables: Tunables = (),
    budget: Budget | None = None,
) -> tuple[str, dict[str, float]]:
    """The name of the table with which a step is fastest, and the median seconds of each.

    As `choose` has it.  tunables: in force for all.
    Takes about `share_s` seconds.  Collective.
    Raises Spent when `budget` is over.
    """
    budget = budget or Budget(base, math.inf)
    turn_s = _TIMED_SHARE * share_s / (2 * DUEL_TURNS * (len(tables) - 1))
    with _started(base, tables) as engines:
        steps = {name: _Step(engine, specs) for name, engine in engines.items()}
        for name, step in steps.items():
            propose(engines[name], tunables)
            step.check()
        name, times = choose(list(steps), lambda name: budget.turn(lambda: steps[name].turn(turn_s)))
    return name, {each: statistics.median(found) for each, found in times.items()}


def choose(
    names: Sequence[str], measure: Callable[[str], Sequence[float]]
) -> tuple[str, dict[str, list[float]]]:
    """Which of the tables of `alternatives` is to be kept, and every measured time of each.

    The last, which follows from single calls, stays unless a backend alone is clearly faster: a step of large
    operations hardly shows what small ones lose.  The first, the job's own, stays unless another is faster.
    """
    times: dict[str, list[float]] = {name: [] for name in names}

    def run(name: str) -> Sequence[float]:
        found = measure(name)
        times[name].extend(found)
        return found

    own, *others, champion = names
    for other in others:
        if duel(champion, other, run)[0]:
            champion = other
    return (champion if duel(own, champion, run)[0] else own), times


@contextmanager
def _started(base: Engine, tables: Mapping[str, Sequence[Winner]]) -> Iterator[dict[str, Engine]]:
    with ExitStack() as stack:
        engines = {}
        for place, (name, winners) in enumerate(tables.items()):
            config = base.config.replace(route=rules_of(winners))
            engines[name] = stack.enter_context(Engine(config, epoch=_FIRST_EPOCH + place))
        yield engines


class _Step:
    """One of each operation on one engine, on buffers of its own."""

    def __init__(self, engine: Engine, specs: Sequence[Spec]) -> None:
        self._engine = engine
        self._specs = specs
        self._cases = [Case(spec, engine) for spec in specs]
        self._batch = engine.prepare(
            [
                case.request(f"step.{place}.{case.spec.kind}", engine)
                for place, case in enumerate(self._cases)
            ]
        )

    def check(self) -> None:
        """Raises Internal if a result is wrong; fills the buffers with what may be repeated."""
        for case in self._cases:
            case.prepare(True)
        self._run()
        for each in self._cases:
            if wrong := each.wrong():
                raise Internal(
                    f"tune: {each.spec.kind} of {each.bytes} bytes on rank {self._engine.rank} gave "
                    f"{wrong} wrong elements next to other operations. Report this."
                )
            each.prepare(False)

    def turn(self, longest_s: float) -> list[float]:
        """Seconds of some steps, of the slowest rank of each; equal on all ranks."""
        once = self._largest([self._run()])[0]
        calls = max(_FEWEST_CALLS, min(_MOST_CALLS, int(longest_s / max(once, 1e-7))))
        return self._largest([self._run() for _ in range(calls)])

    def _largest(self, seconds: Sequence[float]) -> list[float]:
        found = allreduce(np.array(seconds), op=Max, engine=self._engine)
        return [float(each) for each in found]

    def _run(self) -> float:
        ordered_barrier(engine=self._engine)
        began = time.perf_counter()
        left = []
        for place, spec in enumerate(self._specs):
            handle = self._batch.submit([place])[0]
            if spec.kind in _AWAITED:
                handle.wait()
            else:
                left.append(handle)
        for handle in left:
            handle.wait()
        return time.perf_counter() - began
