"""Reduce-scatters and allgathers of even parts against allreduces of the same bytes.

    rabitrun -np 4 python tests/bench/even_parts.py --pairs 500 --kib 64

One step is either `pairs` allreduces or `pairs` pairs of a reduce-scatter and an allgather, in two grouped calls.
The kinds take turns.  Prints the median and the least time of a step, and the processor time of all
ranks, which a loaded machine changes less.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import rabit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--kib", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    rabit.init()
    count = arguments.kib * 256
    full = [np.full(count, rabit.rank() + 1, np.float32) for _ in range(arguments.pairs)]
    part = [np.array_split(each, rabit.size())[rabit.rank()].copy() for each in full]

    def allreduces() -> None:
        rabit.grouped_allreduce(full, name="sum", op=rabit.Sum)

    def pairs() -> None:
        rabit.grouped_reducescatter(full, name="scatter", op=rabit.Sum)
        rabit.grouped_allgather(part, name="gather")

    def pairs_at_once() -> None:
        scattered = rabit.grouped_reducescatter_async(full, name="scatter2", op=rabit.Sum)
        rabit.grouped_allgather(part, name="gather2")
        scattered.result()

    forms = [allreduces, pairs, pairs_at_once]
    wall: dict[str, list[float]] = {form.__name__: [] for form in forms}
    busy: dict[str, list[float]] = {form.__name__: [] for form in forms}
    for step in range(arguments.steps + 2):
        for form in forms:
            rabit.barrier()
            began, began_busy = time.perf_counter(), time.process_time()
            form()
            if step < 2:  # names and memory are new
                continue
            wall[form.__name__].append(time.perf_counter() - began)
            busy[form.__name__].append(time.process_time() - began_busy)
    for name in wall:
        mine = np.array([statistics.median(busy[name])])
        total = float(rabit.allreduce(mine, name=f"busy.{name}", op=rabit.Sum)[0])
        if rabit.rank() == 0:
            median, least = statistics.median(wall[name]), min(wall[name])
            print(
                f"{name:14s} step {median * 1e3:7.1f} ms, least {least * 1e3:7.1f} ms, "
                f"processor time of all ranks {total * 1e3:7.1f} ms",
                flush=True,
            )
    rabit.shutdown()


if __name__ == "__main__":
    main()
