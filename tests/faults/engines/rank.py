"""The program of a rank in the table of engines: python rank.py CASE FOLDER.

As a function, `train` is what the engines call that start functions.  A rank that has met the others leaves a file
rank.N with its process id in FOLDER.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import rabit

LIMIT_S = 90.0
AGAIN = 75  # the status of a job that has saved and wants to be started again


def train(case: str, folder: str) -> int:
    """What a rank does between init() and shutdown(); returns its exit status."""
    rank = rabit.rank()
    _sum("first")
    if case == "second init":
        rabit.shutdown()
        rabit.init()
        _sum("second")
    if case in ("start", "second init"):
        return 0
    deadline = time.monotonic() + LIMIT_S
    is_first = True
    while time.monotonic() < deadline:
        if rabit.should_stop():
            # In one piece: many engines let ranks write into one stream.
            os.write(1, f"rank {rank} stops\n".encode())
            return AGAIN
        if is_first:  # From now on it hears signals.
            is_first = False
            os.write(1, f"rank {rank} goes on\n".encode())
            (Path(folder) / f"new.{rank}").write_text(str(os.getpid()))
            (Path(folder) / f"new.{rank}").rename(Path(folder) / f"rank.{rank}")
        if case == "rank dies" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    raise TimeoutError("nothing has ended the job")


def _sum(name: str) -> None:
    total = rabit.allreduce(np.ones(3), name=name, op=rabit.Sum)
    os.write(1, f"{name} sum of rank {rabit.rank()}: {total[0]:g}\n".encode())


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ and "RABIT_RANK" not in os.environ:
        import rabit_torch  # noqa: F401  the store of torchrun's agents carries the secret
    rabit.init()
    sys.exit(train(*sys.argv[1:]))
