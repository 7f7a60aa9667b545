"""Rank programs with one fault each, for the doctor: python doctor_ranks.py FAULT WHO STRENGTH.

Every program is a loop of steps: some work, an allreduce by name, a mark.  A fault is a function of this file, with the
name of the injection in the doctor's table; it is called on rank WHO in every step from the fifth on.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import rabit

STEPS = 2000
WORK_S = 0.02
kept: list[object] = []


def compute(seconds: float) -> None:
    """Uses a core for this much processor time."""
    until = time.thread_time() + seconds
    a = np.ones((64, 64))
    while time.thread_time() < until:
        a @ a


def branch(step: int, strength: float) -> None:
    while True:
        time.sleep(0.2)


def cross_order(step: int, strength: float) -> None:
    rabit.allreduce(np.ones(8), name="second")
    rabit.allreduce(np.ones(8), name="first")


def uneven_steps(step: int, strength: float) -> None:
    if step > 20:
        # As a rank does whose script ends: the others are still in their loop.
        sys.exit(0)


def left_early(step: int, strength: float) -> None:
    sys.exit(0)


def fork_deadlock(step: int, strength: float) -> None:
    lock = threading.Lock()
    lock.acquire()
    for _ in range(2):
        if os.fork() == 0:
            lock.acquire()  # held for ever by a thread that the child does not have

    def _get_data() -> None:
        time.sleep(600)

    _get_data()


def loader_slow(step: int, strength: float) -> None:
    def _next_data() -> None:
        compute(0.05 * strength)

    _next_data()


def data_skew(step: int, strength: float) -> None:
    compute(0.05 * strength)


def compile_on_one(step: int, strength: float) -> None:
    source = "#include <bits/stdc++.h>\nint main(){std::vector<std::map<int,std::string>> a; a.resize(9);}"
    subprocess.run(
        ["g++", "-O2", "-x", "c++", "-", "-o", "/dev/null"], input=source.encode(), check=True
    )


def checkpoint(step: int, strength: float) -> None:
    def save_checkpoint() -> None:
        time.sleep(0.1 * strength)

    save_checkpoint()


def blocking_call(step: int, strength: float) -> None:
    """A server that accepts and never answers."""
    import urllib.request

    server = socket.create_server(("127.0.0.1", 0))
    kept.append(server)
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=120)
    except OSError:
        return


def gc(step: int, strength: float) -> None:
    import gc as collector

    if not kept:
        kept.extend([[i] for i in range(int(150_000 * strength))])
    collector.collect()


def gil_held(step: int, strength: float) -> None:
    def hold() -> None:
        ctypes.PyDLL(None).sleep(600)

    threading.Thread(target=hold, daemon=True).start()
    time.sleep(0.5)


def raised(step: int, strength: float) -> None:
    raise ValueError("sample 7 is bad")


def not_finite(step: int, strength: float) -> None:
    raise FloatingPointError("the loss of step 5 is not finite")


def stopped(step: int, strength: float) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def foreign_load(step: int, strength: float) -> None:
    """Processes that do not belong to the job: the harness starts them."""
    compute(0.02)


def oversubscribed(step: int, strength: float) -> None:
    compute(0.02)


def pinned(step: int, strength: float) -> None:
    compute(0.03)


def leak(step: int, strength: float) -> None:
    kept.append(np.ones(int((1 << 18) * strength)))


def killed(step: int, strength: float) -> None:
    if step > 60:
        os.kill(os.getpid(), signal.SIGKILL)


def terminated(step: int, strength: float) -> None:
    if step > 60:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def crashed(step: int, strength: float) -> None:
    ctypes.string_at(0)


def disk_full(step: int, strength: float) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    raise OSError(28, "No space left on device", "/data/log")


def none(step: int, strength: float) -> None:
    """A healthy job."""


# What every rank does, not only WHO.
EVERYWHERE = {"foreign-load", "oversubscribed", "pinned", "none"}


def main() -> None:
    name, who, strength = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    fault: Callable[[int, float], None] = globals()[
        name.replace("-", "_").replace("compile", "compile_on_one")
    ]
    rabit.init()
    rank = rabit.rank()
    if name == "pinned":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for step in range(STEPS):
        compute(WORK_S / 4)
        if step >= 5 and (rank == who or name in EVERYWHERE):
            fault(step, strength)
        if name == "cross-order" and step >= 5:
            rabit.allreduce(np.ones(8), name="first")
            rabit.allreduce(np.ones(8), name="second")
        rabit.allreduce(np.ones(1000), name="grad")
        if name != "left-early":
            rabit.mark_step()
    rabit.shutdown()


if __name__ == "__main__":
    main()
