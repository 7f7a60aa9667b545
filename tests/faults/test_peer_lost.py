"""A rank that dies is named on every survivor; nothing hangs and nothing stays behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.job import wait_for_files

LOOP = """
import os, sys, time
from pathlib import Path
import numpy as np
import rabit

rabit.init()
folder = Path(sys.argv[1])
small = np.ones(256, dtype=np.float32)
large = np.ones(1 << 20, dtype=np.float32)
rabit.allreduce_(small, name="first")
(folder / f"ready.{rabit.rank()}").touch()
try:
    step = 0
    while True:
        rabit.allreduce_(small, name=f"small.{step % 7}")
        rabit.allreduce_(large, name="large")
        step += 1
except rabit.PeerLost as error:
    print(f"LOST {error.rank} AT {time.time():.6f}: {error}", flush=True)
"""
OF_OTHERS = ("mpich_", "sm_segment", "vader_", "rabit-nccl-", "torch_", "sem.", "psm_")
# Longer than a test may take: who dies is noticed by the end of its connections.
NO_HEARTBEATS = "10m"
ROUNDS = int(os.environ.get("FAULT_ROUNDS", "20"))


def shared_memory_files() -> set[str]:
    """Names in /dev/shm, except those of other libraries, whose tests may run at the same time."""
    folder = Path("/dev/shm")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    return {name for name in names if not name.startswith(OF_OTHERS)}


def survivors_report(started, victim: int, killed_at: float) -> float:
    """Checks what every survivor printed; returns the slowest delay in seconds."""
    slowest = 0.0
    for rank in range(started.ranks):
        if rank == victim:
            continue
        assert started.processes[rank].wait(timeout=120) == 0, started.output(rank)
        lines = [line for line in started.output(rank).splitlines() if line.startswith("LOST ")]
        assert len(lines) == 1, started.output(rank)
        words = lines[0].split()
        assert words[1] == str(victim), (
            f"rank {rank} blames rank {words[1]}, rank {victim} died:\n{lines[0]}"
        )
        assert f"rank {victim}" in lines[0]
        slowest = max(slowest, float(words[3].rstrip(":")) - killed_at)
    return slowest


@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_kill_9_at_random_moments(job, transport):
    rounds = ROUNDS if transport == "auto" else max(ROUNDS // 5, 3)
    random_moments = random.Random(20240607)
    before = shared_memory_files()
    delays = []
    for index in range(rounds):
        ranks = 2 + index % 3
        started = job(ranks, LOOP, RABIT_TRANSPORT=transport, RABIT_HEARTBEAT_TIMEOUT=NO_HEARTBEATS)
        victim = random_moments.randrange(ranks)
        wait_for_files(started.folder, "ready.*", ranks)
        time.sleep(random_moments.random() * 0.2)

        killed_at = time.time()
        started.processes[victim].send_signal(signal.SIGKILL)

        delays.append(survivors_report(started, victim, killed_at))
        started.close()

    delays.sort()
    print(
        f"\n{transport}: {rounds} kills, PeerLost on all survivors: median {delays[len(delays) // 2] * 1e3:.0f} ms, "
        f"slowest {delays[-1] * 1e3:.0f} ms"
    )
    assert shared_memory_files() <= before


def test_a_stopped_rank_is_named_after_the_heartbeat_timeout(job):
    started = job(3, LOOP, RABIT_HEARTBEAT_TIMEOUT="2s")
    wait_for_files(started.folder, "ready.*", 3)

    stopped_at = time.time()
    started.processes[1].send_signal(signal.SIGSTOP)

    assert survivors_report(started, 1, stopped_at) > 1


def test_an_exit_without_shutdown_does_not_hang_the_others(job):
    script = LOOP.replace(
        "        step += 1\n",
        """        step += 1
        if step == 5 and rabit.rank() == 1:
            os._exit(7)
""",
    )
    started = job(3, script)

    codes = started.wait(timeout=120)

    assert codes == [0, 7, 0]
    assert "LOST 1" in started.output(0)
    assert "LOST 1" in started.output(2)


@pytest.mark.parametrize("victim", [1, 2, 6])
def test_in_a_tree_everybody_learns_who_died(job, victim):
    """Of 7 ranks, 1 and 2 are between rank 0 and two others each."""
    environ = {"RABIT_COORDINATION": "tree", "RABIT_COORDINATION_FAN_OUT": "2"}
    started = job(7, LOOP, RABIT_HEARTBEAT_TIMEOUT=NO_HEARTBEATS, **environ)
    wait_for_files(started.folder, "ready.*", 7)

    killed_at = time.time()
    started.processes[victim].send_signal(signal.SIGKILL)

    survivors_report(started, victim, killed_at)


def test_no_process_is_left(job):
    started = job(2, LOOP)
    wait_for_files(started.folder, "ready.*", 2)
    started.processes[0].kill()
    started.processes[1].wait(timeout=60)

    listing = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout

    assert str(started.folder) not in "\n".join(
        line for line in listing.splitlines() if "defunct" not in line and "ps -eo" not in line
    )
