"""One rank of an MPI that shares no process with rabit: see peers.py.

    mpiexec.mpich -n 2 PYTHON tests/bench/mpi_peer.py --operations allreduce --sizes 1048576

Needs mpi4py and NumPy.  Writes what it measured as rabit's own workers do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI
from peers import Samples, repeats_of, with_warm_up

WORLD = MPI.COMM_WORLD
SECONDS_PER_TURN = 0.3  # an MPI that never yields takes milliseconds where ranks outnumber cores


def call_of(operation: str, size: int) -> tuple[Callable[[], object], np.ndarray]:
    """The blocking call, and the array that an allreduce changes in place."""
    count, part = size // 4, size // 4 // WORLD.size
    whole, other = np.ones(count, np.float32), np.zeros(count, np.float32)
    calls = {
        "allreduce": lambda: WORLD.Allreduce(MPI.IN_PLACE, whole, op=MPI.SUM),
        "allgather": lambda: WORLD.Allgather(whole[:part], other[: part * WORLD.size]),
        "reducescatter": lambda: WORLD.Reduce_scatter_block(
            whole[: part * WORLD.size], other[:part], op=MPI.SUM
        ),
        "broadcast": lambda: WORLD.Bcast(whole, 0),
        "alltoall": lambda: WORLD.Alltoall(whole, other),
    }
    return calls[operation], whole


def seconds_of(operation: str, size: int, args: argparse.Namespace) -> list[float]:
    call, whole = call_of(operation, size)
    values = []
    repeats = args.repeats or repeats_of(size, args.rounds)
    for turn in range(args.rounds + 1):
        whole.fill(1.0)
        WORLD.Barrier()
        start = time.perf_counter()
        call()
        affordable = int(SECONDS_PER_TURN / (time.perf_counter() - start))
        for _ in range(min(repeats, max(3, WORLD.bcast(affordable)))):
            if operation == "allreduce":
                whole[:1] = 1.0
            else:  # a root may run ahead of what its peers have received: start together
                WORLD.Barrier()
            start = time.perf_counter()
            call()
            if turn:  # the first round warms up
                values.append(time.perf_counter() - start)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", required=True, help="comma separated")
    parser.add_argument("--sizes", required=True, help="bytes, comma separated")
    parser.add_argument("--keys", help="of the rows, by size; default: the operation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=0, help="0: by size")
    parser.add_argument("--result", required=True)
    args = parser.parse_args()
    sizes = [int(text) for text in args.sizes.split(",")]
    rows = {}
    for operation in args.operations.split(","):
        keys = args.keys.split(",") if args.keys else [operation]
        for key, size in with_warm_up(list(zip(keys, sizes, strict=True))):
            rows[key] = seconds_of(operation, size, args)
    everyone = WORLD.gather(rows, root=0)
    if WORLD.rank == 0:
        # Of an allreduce rank 0 is recorded; a broadcast is over when its last receiver has it.
        recorded = everyone[:1] if args.operations == "allreduce" else everyone
        samples: Samples = {"mpich": {key: [each[key] for each in recorded] for key in rows}}
        Path(args.result).write_text(json.dumps(samples))


if __name__ == "__main__":
    main()
