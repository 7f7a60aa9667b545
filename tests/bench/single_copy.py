"""Collectives over shared memory: long messages read from the sender's memory, and copied twice.

    python tests/bench/single_copy.py [--ranks 2] [--turns 40]

Every rank holds one engine of each kind; they take turns on the same buffers.  Sizes are those of the
larger of input and output.  A figure is the median of single operations of rank 0; a ratio is the
median of copied / read, above 1 reading is faster, with the middle half of the turns.  `cpu` is the
same ratio of the processor time of all ranks together, which other programs on the machine lengthen
less.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (16 << 20, 64 << 20)
KINDS = {"read": True, "copied": False}

Operation = Callable[[Any], object]


def operations(size: int, ranks: int) -> dict[str, Operation]:
    import rabit

    full = np.ones(size // 4, np.float32)
    part = np.ones(size // 4 // ranks, np.float32)
    return {
        "allreduce": lambda engine: rabit.allreduce_(full, name="r", op=rabit.Max, engine=engine),
        "allgather": lambda engine: rabit.allgather(part, name="g", engine=engine),
        "broadcast": lambda engine: rabit.broadcast_(full, 0, name="b", engine=engine),
        "alltoall": lambda engine: rabit.alltoall(full, name="t", engine=engine),
    }


def take_turns(engines: dict[str, Any], run: Operation, turns: int) -> dict[str, np.ndarray]:
    """Seconds of rank 0's clock and of all processors, by kind and turn; the first warms up."""
    import rabit

    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in engines}
    for turn in range(turns + 1):
        for kind in engines if turn % 2 else reversed(engines):
            rabit.ordered_barrier(engine=engines[kind])
            start, used = time.perf_counter(), time.process_time()
            run(engines[kind])
            seconds = (time.perf_counter() - start, time.process_time() - used)
            if turn:
                taken[kind].append(seconds)
    totals = {}
    for kind, seconds_of_turns in taken.items():
        totals[kind] = np.array(seconds_of_turns)
        used_by_all = np.ascontiguousarray(totals[kind][:, 1])
        rabit.ordered_allreduce_(used_by_all, rabit.Sum, engine=engines[kind])
        totals[kind][:, 1] = used_by_all
    return totals


def row(taken: dict[str, np.ndarray]) -> str:
    clock, cpu = (taken["copied"] / taken["read"]).T
    medians = [np.median(taken[kind][:, 0]) * 1e3 for kind in KINDS]
    low, middle, high = np.percentile(clock, [25, 50, 75])
    return (
        f"{medians[0]:9.2f} ms {medians[1]:9.2f} ms   {middle:5.2f} ({low:.2f}-{high:.2f})"
        f"  cpu {np.median(cpu):5.2f}"
    )


def work(turns: int) -> None:
    import rabit
    from rabit.config.config import Config

    secret = bytes.fromhex(os.environ.pop("BENCH_SECRET"))
    config = Config.from_environ().replace(secret=secret)
    engines = {
        kind: rabit.Engine(config.replace(shm_single_copy=reads), epoch=epoch)
        for epoch, (kind, reads) in enumerate(KINDS.items(), 1)
    }
    for size in SIZES:
        for name, run in operations(size, config.size).items():
            taken = take_turns(engines, run, turns)
            if config.rank == 0:
                print(f"{config.size} ranks {size >> 20:3} MiB {name:10} {row(taken)}", flush=True)
    for engine in engines.values():
        rabit.ordered_barrier(engine=engine)
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.turns)
        return
    from rabit.rendezvous.discovery import StoreServer

    secret = secrets.token_bytes(32)
    store = StoreServer("127.0.0.1", 0, secret)
    words = [sys.executable, str(Path(__file__).resolve()), "--worker", "--turns", str(args.turns)]
    ranks = []
    for rank in range(args.ranks):
        place = {
            "RABIT_RANK": str(rank),
            "RABIT_SIZE": str(args.ranks),
            "RABIT_LOCAL_RANK": str(rank),
            "RABIT_LOCAL_SIZE": str(args.ranks),
            "RABIT_STORE_ADDRESS": f"127.0.0.1:{store.port}",
            "RABIT_TRANSPORT": "shm",
            "BENCH_SECRET": secret.hex(),
        }
        ranks.append(subprocess.Popen(words, env={**os.environ, **place}))
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise SystemExit("a rank failed; its output says why")


if __name__ == "__main__":
    main()
