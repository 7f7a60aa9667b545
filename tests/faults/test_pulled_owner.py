"""A rank that reads parts of others gets them whatever their programs do, and names one that dies or hangs."""

from __future__ import annotations

import signal

import pytest
from support.job import wait_for_files

READS = """
import ctypes
import os
import sys
from pathlib import Path

import torch

import rabit
from rabit_torch import sharding

torch.set_num_threads(1)
rabit.init()
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(2)))
sharding.shard(model, keep=0, gather="pull")
(Path(sys.argv[1]) / f"ready.{rabit.rank()}").touch()
if rabit.rank():
    ctypes.PyDLL(None).pause()  # with Python's lock: no thread of Python runs
try:
    for _ in range(READS):
        sharding.whole(model[0].weight)
except rabit.PeerLost as error:
    print(f"LOST {error.rank}: {error}", flush=True)
    sys.exit()
print("READ", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("variables", [{}, {"RABIT_INTERFACES": "lo,lo"}], ids=["", "interfaces"])
def test_an_owner_whose_python_is_busy_still_serves(job, variables):
    started = job(3, READS.replace("READS", "3"), **variables)

    assert started.processes[0].wait(timeout=100) == 0, started.output(0)
    assert "READ" in started.output(0).splitlines()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_owner_that_dies_or_hangs_is_named(job, number):
    started = job(3, READS.replace("READS", "10**9"))
    wait_for_files(started.folder, "ready.*", 3)

    started.processes[2].send_signal(number)

    assert started.processes[0].wait(timeout=100) == 0, started.output(0)
    (line,) = [line for line in started.output(0).splitlines() if line.startswith("LOST ")]
    assert line.startswith("LOST 2: parameters of '0' on rank 0: rank 2 at 127.0.0.1:"), line
