"""A rank that ends or fails while the ranks start is named by the others at once, with its reason."""

from __future__ import annotations

import random
import signal
import time

import pytest
from support.job import wait_for_files
from support.ports import listening_ports

START = """
import os, sys, time
from pathlib import Path
import numpy as np
import rabit

folder = Path(sys.argv[1])
mine = os.environ["RABIT_RANK"]
{before}
try:
    rabit.init()
    (folder / f"started.{{mine}}").touch()
    while True:
        rabit.allreduce_(np.ones(4, dtype=np.float32), name="x")
except rabit.RabitError as error:
    print(f"{{type(error).__name__}} {{error.rank}} AT {{time.time():.6f}}: {{error}}", flush=True)
"""
# Rank 2 comes when it is told to, if ever.
LATE = """
while mine == "2" and not (folder / "come").exists():
    time.sleep(0.01)
"""
# What a busy machine may take for it.  Those who are not told wait for connect_timeout, a minute.
SECONDS_MAX = 10


def wait_until_joined(started, rank):
    """A rank opens its port after it has met the others in the store."""
    end = time.monotonic() + 60
    while not listening_ports([started.processes[rank].pid]):
        assert time.monotonic() < end, started.output(rank)
        time.sleep(0.005)


def verdict(started, rank):
    """(class, culprit, when, text) of the only error that a rank prints."""
    started.processes[rank].wait(timeout=60)
    lines = [line for line in started.output(rank).splitlines() if " AT " in line]
    assert len(lines) == 1, started.output(rank)
    name, culprit, _, when, text = lines[0].split(" ", 4)
    return name, int(culprit), float(when.rstrip(":")), text


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_rank_that_is_killed_while_the_others_wait_is_named(job, transport):
    started = job(3, START.format(before=LATE), RABIT_TRANSPORT=transport)
    for rank in (0, 1):
        wait_until_joined(started, rank)

    killed_at = time.time()
    started.processes[1].send_signal(signal.SIGKILL)

    name, culprit, when, text = verdict(started, 0)
    assert (name, culprit) == ("PeerLost", 1)
    assert "rank 1 ended before all ranks had started" in text
    assert when - killed_at < SECONDS_MAX
    # Who comes after that learns it as well.
    (started.folder / "come").touch()
    assert verdict(started, 2)[:2] == ("PeerLost", 1)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_rank_that_cannot_start_tells_the_others_why(job, transport):
    no_address = 'if mine == "1": os.environ["RABIT_BIND_ADDRESS"] = "203.0.113.1"'
    begin = time.time()

    started = job(3, START.format(before=no_address), RABIT_TRANSPORT=transport)

    for rank in (0, 2):
        name, culprit, when, text = verdict(started, rank)
        assert (name, culprit) == ("PeerLost", 1)
        assert "rank 1 could not start" in text
        assert "203.0.113.1" in text
        assert when - begin < 60 / 2


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_kill_9_at_random_moments_of_the_start(job, transport):
    moments = random.Random(20261122)
    delays = []
    for _ in range(6):
        started = job(4, START.format(before=""), RABIT_TRANSPORT=transport)
        wait_until_joined(started, 1)
        time.sleep(moments.random() * 0.05)
        killed_at = time.time()
        started.processes[1].send_signal(signal.SIGKILL)
        for rank in (0, 2, 3):
            name, culprit, when, text = verdict(started, rank)
            assert (name, culprit) == ("PeerLost", 1), text
            delays.append(when - killed_at)
        started.close()

    delays.sort()
    middle = delays[len(delays) // 2]
    print(f"\n{transport}: known after {middle:.3f} s in the median, {delays[-1]:.3f} s at most")
    assert delays[-1] < SECONDS_MAX


def test_an_exception_after_the_start_ends_the_others(job):
    raising = START.replace(
        "    while True:", '    if mine == "1": raise ValueError("no data")\n    while True:'
    )
    started = job(3, raising.format(before=""))
    wait_for_files(started.folder, "started.*", 3)

    for rank in (0, 2):
        name, culprit, _, _ = verdict(started, rank)
        assert (name, culprit) == ("PeerLost", 1)


INTERRUPTED = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import rabit

folder = Path(sys.argv[1])
mine = os.environ["RABIT_RANK"]
while mine == "1" and not (folder / "come").exists():
    time.sleep(0.01)
{before}
rabit.init()
print("sum", rabit.allreduce(np.ones(4), name="x", op=rabit.Sum).tolist(), flush=True)
"""


def test_ctrl_c_ends_a_rank_that_waits_for_the_others(job):
    started = job(2, INTERRUPTED.format(before=""), RABIT_CONNECT_TIMEOUT="1h")
    wait_until_joined(started, 0)

    started.processes[0].send_signal(signal.SIGINT)

    assert started.processes[0].wait(timeout=60) == -signal.SIGINT
    text = started.output(0)
    assert text.count("Traceback") == 1 and text.endswith("\nKeyboardInterrupt\n"), text
    # Who comes later learns that it has gone.
    (started.folder / "come").touch()
    started.processes[1].wait(timeout=60)
    assert "PeerLost: rank 0 ended before all ranks had started" in started.output(1)


def test_a_start_that_was_interrupted_is_taken_up_by_the_next(job):
    before = """
try:
    rabit.init()
except KeyboardInterrupt:
    print("interrupted", rabit.is_initialized(), flush=True)
    (folder / "come").touch()
"""
    started = job(2, INTERRUPTED.format(before=before), RABIT_CONNECT_TIMEOUT="1h")
    wait_until_joined(started, 0)

    started.processes[0].send_signal(signal.SIGINT)

    assert [each.wait(timeout=60) for each in started.processes] == [0, 0], started.output(0)
    assert started.output(0) == "interrupted False\nsum [2.0, 2.0, 2.0, 2.0]\n"
