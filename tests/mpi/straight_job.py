"""The program of mixing_job.py without its engine: blocking calls, one library beside the other.

Arguments: seed, operations, folder, seconds.  Operations of "mpi" are mpi4py's own; the others are ordered
calls, which rabit's algorithms run without any agreement.  Every rank calls in the order of "everybody",
or, with MIXING_OWN_ORDER=1, in one of its own.
Each rank keeps in the file RANK of the folder what it is in, and ends with status 9 when all of it takes so
many seconds.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
from mixing_program import Call, call_of, orders

import rabit

STUCK = 9


def run_mpi(call: Call, comm) -> np.ndarray:
    mine = call.input(comm.rank)
    if call.kind == "broadcast":
        comm.Bcast(mine, call.root(comm.size))
        return mine
    out = np.zeros(call.count * (comm.size if call.is_gather else 1), mine.dtype)
    run = {"allreduce": comm.Allreduce, "allgather": comm.Allgather, "alltoall": comm.Alltoall}
    run[call.kind](mine, out)
    return out


def run_ordered(call: Call) -> np.ndarray:
    mine = call.input(rabit.rank())
    if call.kind == "allreduce":
        rabit.ordered_allreduce_(mine, rabit.Sum)
        return mine
    if call.kind == "broadcast":
        rabit.ordered_broadcast_(mine, call.root(rabit.size()))
        return mine
    out = np.zeros(call.count * (rabit.size() if call.is_gather else 1), mine.dtype)
    run = rabit.ordered_allgather_into if call.is_gather else rabit.ordered_alltoall_into
    run(out, mine)
    return out


def main() -> None:
    seed, operations = int(sys.argv[1]), int(sys.argv[2])
    folder, seconds = Path(sys.argv[3]), float(sys.argv[4])
    rabit.init()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    state, who = folder / str(comm.rank), "everybody"
    if os.environ.get("MIXING_OWN_ORDER"):
        who = f"rank {comm.rank}"
    comm.Barrier()
    alarm = threading.Timer(seconds, os._exit, (STUCK,))
    alarm.daemon = True
    alarm.start()
    wrong = 0
    for numbers in orders(seed, operations, who):
        for number in numbers:
            call = call_of(seed, number, ("mpi",), comm.size)
            state.write_text(f"{call.backend or 'builtin'} {call.name}")
            found = run_mpi(call, comm) if call.backend == "mpi" else run_ordered(call)
            wrong += not call.is_right(found, comm.size)
    alarm.cancel()
    state.write_text(f"done, wrong {wrong}")
    rabit.shutdown()


if __name__ == "__main__":
    main()
