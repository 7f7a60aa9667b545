"""Starts where something is short: shared memory, or open files."""

from __future__ import annotations

import socket
import time

from support.ports import listening_ports

SUM = """
import os, resource, sys, time
from pathlib import Path
import numpy as np

is_last = os.environ["RABIT_RANK"] == "1"
folder = Path(sys.argv[1])
{before}
import rabit

rabit.init()
data = np.full(100_000, rabit.rank() + 1.0, dtype=np.float32)
rabit.allreduce_(data, name="x", op=rabit.Sum)
assert (data == sum(range(1, rabit.size() + 1))).all()
print("SUM RIGHT")
rabit.shutdown()
"""


def test_a_rank_without_shared_memory_makes_its_host_use_tcp(job):
    # Memory files obey the limit of file sizes.
    limit = "if is_last: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))"
    started = job(2, SUM.format(before=limit))

    assert started.wait(timeout=60) == [0, 0], started.output(0) + started.output(1)
    assert "SUM RIGHT" in started.output(0)
    said = "has no shared memory, so that the ranks of its host use TCP"
    assert started.output(1).count(said) == 1
    assert said not in started.output(0)


def test_a_thousand_idle_strangers_do_not_use_up_the_files_of_a_rank(job):
    before = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
while is_last and not (folder / "go").exists():
    time.sleep(0.02)
"""
    started = job(2, SUM.format(before=before), RABIT_TRANSPORT="tcp")
    begin = time.monotonic()
    while not (ports := listening_ports([started.processes[0].pid])):
        assert time.monotonic() < begin + 60, started.output(0)
        time.sleep(0.02)
    idle = []
    for _ in range(1000):
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex(next(iter(ports)))
        idle.append(stranger)
    (started.folder / "go").touch()

    assert started.wait(timeout=120) == [0, 0], started.output(0) + started.output(1)
    for stranger in idle:
        stranger.close()
