"""Processor time of gradient methods; where the engine has the codec, against the same in NumPy.

    OMP_NUM_THREADS=1 python tests/bench/method_costs.py

Two ranks that are threads of this process, one parameter of 16 MiB; nanoseconds of processor time for
each element and rank in a step, everything included; the better of two runs, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

import rabit.strategies as methods
from rabit.testing import run_ranks

COUNT = 1 << 22
RANKS, STEPS, TURNS = 2, 3, 2
SPECS = (
    "qsgd:bits=8",
    "qsgd:bits=4",
    "nuqsgd:bits=4",
    "fp8",
    "natural",
    "terngrad:clip=0",
    "bytegrad",
    "sign",
    "topk:ratio=0.01",
)
# What has no counterpart.
OTHERS = ("alq", "amq", "onebit", "wangni", "demo", "lowprecision", "adasum", "randomk")


def cost(strategy: Callable[[], methods.Strategy]) -> float:
    started = [0.0]

    def on_rank(engine):
        gradient = np.random.default_rng(engine.rank).standard_normal((COUNT // 1024, 1024))
        gradient = gradient.astype(np.float32)
        trainer = methods.ArrayTrainer(
            {"w": np.zeros_like(gradient)},
            strategy(),
            lr=1.0,
            update=lambda slot: None,
            engine=engine,
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


def in_numpy(exchange: methods.Exchange) -> methods.Exchange:
    if isinstance(exchange, methods.ErrorFeedback):
        return methods.ErrorFeedback(in_numpy(exchange.inner))
    assert isinstance(exchange, methods.InEngine)
    return exchange.otherwise


def main() -> None:
    print(f"{'method':20}{'engine':>10}{'NumPy':>10}   ns of processor time an element")
    print(f"{'mean':20}{cost(partial(methods.make, 'mean')):10.1f}")
    for spec in OTHERS:
        print(f"{spec:20}{min(cost(partial(methods.make, spec)) for _ in range(TURNS)):10.1f}")
    for spec in SPECS:
        exchange = methods.make(spec).exchange.inner
        ways = [partial(methods.Synchronous, each) for each in (exchange, in_numpy(exchange))]
        costs = [[cost(way) for way in ways] for _ in range(TURNS)]
        engine, numpy = (min(each) for each in zip(*costs, strict=True))
        print(f"{spec:20}{engine:10.1f}{numpy:10.1f}", flush=True)


if __name__ == "__main__":
    main()
