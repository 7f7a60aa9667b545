"""A rank of recovery.py: the same steps by one library, with a loss in the middle.

    recovery_rank.py WAY FOLDER

A step is a mean of 50,000 float64 numbers that are added to a state.  The victim ends itself before a step; everybody
writes down when each step ended, by a clock that all processes of the machine share.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

WAY, FOLDER = sys.argv[1], Path(sys.argv[2])
ELEMENTS, KILL_AT, STEPS = 50_000, 30, 60
PACE_S = 0.01
RANKS = 4


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Notes:
    """One line for each step: when it ended, its number, and by how many ranks it was made."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file = (FOLDER / f"steps.{name}.{os.getpid()}").open("w")

    def step(self, step: int, size: int) -> None:
        self._file.write(f"{now()} {step} {size}\n")
        self._file.flush()
        time.sleep(PACE_S)

    def meet(self, step: int, is_victim: bool) -> None:
        killed = FOLDER / "killed"
        if is_victim and step == KILL_AT and not killed.exists():
            killed.write_text(str(now()))
            os.kill(os.getpid(), signal.SIGKILL)


def rabit_elastic() -> None:
    import rabit
    import rabit.elastic

    me = int(os.environ["RABIT_RANK"])
    rabit.init()
    notes = Notes(str(me))
    state = rabit.elastic.ObjectState(step=0, weights=np.zeros(ELEMENTS))

    @rabit.elastic.run
    def train(state: Any) -> None:
        while state.step < STEPS:
            notes.meet(state.step, me == RANKS - 1)
            state.weights += rabit.allreduce(np.ones(ELEMENTS), name="gradient")
            state.step += 1
            state.commit()
            notes.step(state.step, rabit.size())

    train(state)


def rabit_restarts() -> None:
    import rabit
    from rabit.checkpoint import Checkpoint

    rabit.init()
    notes = Notes(str(rabit.rank()))
    checkpoint = Checkpoint(FOLDER / "checkpoints", every=5)
    found = checkpoint.restore()
    step, weights = (0, np.zeros(ELEMENTS)) if found is None else (found.step, found.state)
    while step < STEPS:
        notes.meet(step, rabit.rank() == RANKS - 1)
        weights = weights + rabit.allreduce(np.ones(ELEMENTS), name="gradient")
        step += 1
        if checkpoint.is_due(step):
            checkpoint.save(weights, step=step)
        notes.step(step, rabit.size())
    checkpoint.wait()


def torchrun() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    notes = Notes(str(dist.get_rank()))
    saved = FOLDER / "state.pt"
    step, weights = 0, torch.zeros(ELEMENTS, dtype=torch.float64)
    if saved.exists():
        step, weights = torch.load(saved)
    while step < STEPS:
        notes.meet(step, dist.get_rank() == RANKS - 1)
        gradient = torch.ones(ELEMENTS, dtype=torch.float64)
        dist.all_reduce(gradient)
        weights += gradient / dist.get_world_size()
        step += 1
        if step % 5 == 0 and dist.get_rank() == 0:
            torch.save((step, weights), FOLDER / "state.new")
            (FOLDER / "state.new").rename(saved)
        notes.step(step, dist.get_world_size())
    dist.destroy_process_group()


def torchft() -> None:
    import torch
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo

    torch.set_num_threads(1)
    me = int(os.environ["REPLICA"])
    notes = Notes(str(me))
    weights = torch.zeros(ELEMENTS, dtype=torch.float64)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=lambda state: weights.copy_(state["weights"]),
        state_dict=lambda: {"weights": weights},
        min_replica_size=1,
        replica_id=f"replica{me}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        timeout=timedelta(seconds=20),
    )
    while manager.current_step() < STEPS:
        notes.meet(manager.current_step(), me == RANKS - 1)
        manager.start_quorum()
        gradient = torch.ones(ELEMENTS, dtype=torch.float64)
        manager.allreduce(gradient).wait()
        if manager.should_commit():
            weights += gradient
            notes.step(manager.current_step(), manager.num_participants())
    manager.shutdown()


def ulfm() -> None:
    import mpi4py

    mpi4py.rc.finalize = False
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    me = comm.rank
    notes = Notes(str(me))
    step, weights = 0, np.zeros(ELEMENTS)
    while step < STEPS:
        notes.meet(step, me == RANKS - 1)
        total, error = np.empty(ELEMENTS), 0
        try:
            comm.Allreduce(np.ones(ELEMENTS), total)
        except MPI.Exception as failure:
            error = failure.Get_error_class()
            comm.Revoke()
        # A rank may have the sum where another has an error: all take the step, or none.
        try:
            is_done = bool(comm.Agree(int(error == 0)))
        except MPI.Exception:
            is_done = False
        if not is_done:
            comm = comm.Shrink()
            comm.Set_errhandler(MPI.ERRORS_RETURN)
            # Whoever was ahead has committed nothing: the agreement is the commit.
            continue
        weights += total / comm.size
        step += 1
        notes.step(step, comm.size)
    os._exit(0)  # After a loss MPI_Finalize waits for it.


WAYS = {
    "rabit elastic": rabit_elastic,
    "rabit spare": rabit_elastic,
    "rabit restarts": rabit_restarts,
    "torchrun": torchrun,
    "torchrun own stores": torchrun,
    "torchft": torchft,
    "ulfm": ulfm,
}

if __name__ == "__main__":
    WAYS[WAY]()
