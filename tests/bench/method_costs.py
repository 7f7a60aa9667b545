"""Processor time of gradient methods."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from harness import case, table, turns, words

import rabit.strategies as methods
from rabit.testing import run_ranks

COUNT, RANKS, STEPS = 1 << 22, 2, 3
SPECS = (
    "mean,alq,amq,onebit,wangni,demo,lowprecision,adasum,randomk,qsgd:bits=8,qsgd:bits=4,nuqsgd:bits=4,fp8,natural,"
    "terngrad:clip=0,bytegrad,sign,topk:ratio=0.01"
)


@case(specs=words(SPECS), turns=2)
def method_costs(o: Any) -> None:
    """Nanoseconds of processor time for each element and rank in a step of a method, everything included.

    Two ranks that are threads of this process, one parameter of 16 MiB; the better of the turns.  OMP_NUM_THREADS=1.
    """
    found = turns({spec: lambda spec=spec: cost(spec) for spec in o.specs}, o.turns, warm=0)
    table(["", "ns an element"], [[spec, f"{min(costs):.1f}"] for spec, costs in found.items()])


def cost(spec: str) -> float:
    started = [0.0]

    def on_rank(engine: Any) -> float:
        gradient = np.random.default_rng(engine.rank).standard_normal((COUNT // 1024, 1024), np.float32)
        trainer = methods.ArrayTrainer(
            {"w": np.zeros_like(gradient)}, methods.make(spec), lr=1.0, update=lambda slot: None, engine=engine
        )
        for _ in range(2):  # Levels are fitted in the second step.
            trainer.step({"w": gradient})
        if engine.rank == 0:
            started[0] = time.process_time()
        for _ in range(STEPS):
            trainer.step({"w": gradient})
        return time.process_time()

    ended = max(run_ranks(RANKS, on_rank, timeout=300))
    return (ended - started[0]) / STEPS / RANKS / COUNT * 1e9
