"""Jobs whose summation servers are killed at a random moment, with replicas.

    python tests/faults/server_losses.py [--runs 50] [--seed 0]

A seed decides everything: two to four ranks, two to four servers, which one is killed, in which step and how far into
it, and whether servers sum gradients (even seeds) or keep parameters (odd ones).  Every rank must have the sum in the
order of the ranks in every step, to the bit; and parameters must have every update exactly once.  A job that goes wrong
prints its seed, which plays it again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import seeds

STEPS = 14
LIMIT_S = 120.0
COUNTS = (900, 260_000, 40_000, 7)


@dataclass(frozen=True)
class Loss:
    """A job, and the moment at which one of its servers is killed."""

    ranks: int
    servers: int
    is_async: bool
    victim: int
    step: int
    after_ms: float


def loss_of(seed: int) -> Loss:
    dice = random.Random(f"server losses {seed}")
    servers = dice.randint(2, 4)
    return Loss(
        ranks=dice.randint(2, 4),
        servers=servers,
        is_async=seed % 2 == 1,
        victim=dice.randrange(servers),
        step=dice.randint(1, STEPS - 3),
        after_ms=dice.uniform(0, 60),
    )


def server_process(number: int) -> int:
    """Of the job around this rank."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            environ = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # It has ended meanwhile.
        is_server = parent == os.getppid() and command.endswith(b"rabit.server\0")
        if is_server and f"RABIT_RANK={number}".encode() in environ:
            return int(entry.name)
    raise LookupError(f"there is no server {number}")


class Killer:
    """Kills the server in its own time; in rank 0."""

    def __init__(self, loss: Loss) -> None:
        self._step = loss.step
        self._process, self._after_s = server_process(loss.victim), loss.after_ms / 1e3
        self._timer: threading.Timer | None = None

    def begin(self, step: int) -> None:
        if step == self._step:
            self._timer = threading.Timer(self._after_s, os.kill, (self._process, signal.SIGKILL))
            self._timer.start()
        if step == STEPS - 2 and self._timer is not None:
            self._timer.join()


def values(rank: int, step: int, i: int) -> np.ndarray:
    return np.random.default_rng([rank, step, i]).standard_normal(COUNTS[i]).astype(np.float32)


def sums(rank: int, size: int, step: int) -> None:
    """One step of synchronous training: several tensors at once, in two types."""
    import rabit

    handles = []
    for i in range(len(COUNTS)):
        mine = values(rank, step, i)
        handles.append(rabit.allreduce_async(mine, op=rabit.Sum, name=f"t{i}"))
    for i, handle in enumerate(handles):
        expected = values(0, step, i)
        for other in range(1, size):
            expected += values(other, step, i)
        assert rabit.synchronize(handle).tobytes() == expected.tobytes(), f"step {step}, tensor {i}"


def work(loss: Loss) -> None:
    import rabit

    rabit.init()
    rank, size = rabit.rank(), rabit.size()
    killer = Killer(loss) if rank == 0 else None
    shared = []
    if loss.is_async:
        for i, count in enumerate(COUNTS):
            first = np.full(count, i, np.float32)
            shared.append(rabit.ServerParameters(first, name=f"p{i}", staleness=2))
    for step in range(STEPS):
        if killer is not None:
            killer.begin(step)
        if not loss.is_async:
            sums(rank, size, step)
        for each, count in zip(shared, COUNTS, strict=False):
            each.add(np.ones(count, np.float32))
            assert each.end_step() <= 2
    rabit.barrier(name="all steps")
    for i, count in enumerate(COUNTS[: len(shared)]):
        now = np.zeros(count, np.float32)
        shared[i].add(now)
        assert (now == i + size * STEPS).all(), f"parameter {i}: {np.unique(now)[:5]}"
    lost = rabit.statistics()["backend_details"]["ps"]["servers"]
    print(f"rank {rank} is done, lost {[i for i, each in enumerate(lost) if each['is_lost']]}")


def run(seed: int) -> str:
    """The job of a seed; returns what rabitrun has said."""
    loss = loss_of(seed)
    command = [
        sys.executable, "-m", "rabit.launch", "-np", str(loss.ranks), "-s", str(loss.servers),
        "--server-replicas", "2", sys.executable, __file__, "--work", str(seed),
    ]  # fmt: skip
    environ = {**os.environ, "RABIT_PS_ASYNC": str(int(loss.is_async))}
    done = subprocess.run(
        command,
        env=environ,
        cwd=tempfile.gettempdir(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    said = f"seed {seed}, {loss}, status {done.returncode}:\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, said
    assert done.stdout.count("is done") == loss.ranks, said
    noted = f"rabitrun: server {loss.victim} (host localhost) was killed by SIGKILL (signal 9); the job continues"
    assert done.stderr.count(noted) == 1, said
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    parser = seeds.options(__doc__, runs=50)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work is not None:
        work(loss_of(options.work))
        return 0
    return seeds.play(options, run, jobs="jobs continued without a server", about=loss_of)


if __name__ == "__main__":
    sys.exit(main())
