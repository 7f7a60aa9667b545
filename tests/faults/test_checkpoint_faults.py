"""Checkpoints on disks that break: the newest whole generation loads, and damage is found.

The long form is `make campaign-checkpoints`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import checkpoint_processes
from support.checkpoint_faults import check_after, crash_points, damages_detected, die, fail

from rabit.checkpoint import commit

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def short_writes(monkeypatch):
    """Files of some hundred bytes take several writes, so that a crash can come in between."""
    monkeypatch.setattr(commit, "_WRITE_BYTES", 128)


@pytest.mark.parametrize(("first", "survives"), enumerate(["all", "none", "some"]))
def test_a_crash_between_any_two_operations_loses_nothing(first, survives):
    """Every point once; the long form has each with every fate."""
    points = crash_points(2)
    assert len(points) >= 200

    for rank, number in points[first::3]:
        check_after(die(2, rank, number), survives, seed=number, size=1 + number % 3)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_once_is_told_on_all_ranks_and_survived(rank, error):
    operations = fail(2, rank, 0, error)
    assert operations >= 50

    for number in range(1 + rank, operations + 1, 2):
        fail(2, rank, number, error)


def test_every_change_of_a_file_is_detected():
    assert damages_detected(3000, seed=1) > 2900


def test_processes_are_killed_between_any_two_operations():
    """Every ninth point, and so many errors of the disk; the long form has all."""
    points = checkpoint_processes.points()
    assert len(points) >= 200

    killed = [checkpoint_processes.lose_at(rank, number) for rank, number in points[::9]]
    assert killed.count(False) <= 4
    for rank, number in points[4::27]:
        checkpoint_processes.fail_at(rank, number)


KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from rabit.checkpoint import Checkpoint
sys.path.insert(0, sys.argv[2])
from support.checkpoint_faults import is_same
from support.thread_peers import Room, ThreadPeers

def state(step):
    return {"a": np.random.default_rng(step).normal(size=200_000), "step": step}

checkpoint = Checkpoint(Path(sys.argv[1]), 2, peers=ThreadPeers(Room(1), 0))
found = checkpoint.restore()
step = 0
if found is not None:
    step = found.step
    assert is_same(found.state, state(step))
print(step, flush=True)
while True:
    step += 1
    checkpoint.save(state(step), step=step)
    checkpoint.wait()
    print(step, flush=True)
"""


def test_a_process_that_is_killed_at_any_moment_goes_on_where_it_was(tmp_path):
    chance = random.Random(7)
    acknowledged = 0
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), str(TESTS)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        first = process.stdout.readline()
        assert first, process.stderr.read()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, 0.1))  # somewhere in one of its saves
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read()  # communicate() would not see what came along with the first line
        process.communicate(timeout=60)
        assert acknowledged <= int(first) <= acknowledged + 1
        acknowledged = int((first + rest).split()[-1])


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from rabit.checkpoint import Checkpoint, CheckpointFailed
sys.path.insert(0, sys.argv[2])
from support.thread_peers import Room, ThreadPeers

checkpoint = Checkpoint(Path(sys.argv[1]), peers=ThreadPeers(Room(1), 0))
checkpoint.save({"x": np.ones(1000)}, step=1)
checkpoint.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
checkpoint.save({"x": np.ones(1_000_000)}, step=2)
try:
    checkpoint.wait()
except CheckpointFailed as error:
    print(error)
print(checkpoint.restore().step, sorted(each.name for each in Path(sys.argv[1]).glob("*/*")))
"""


def test_files_that_may_not_grow_leave_the_old_generation(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(TESTS)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert "rank 0 could not write" in done.stdout, done.stderr
    assert "File too large" in done.stdout
    assert done.stdout.splitlines()[-1] == (
        "1 ['manifest.json', 'shard-00000-of-00001.safetensors']"
    )
