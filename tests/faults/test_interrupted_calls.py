"""A signal's exception in a blocking call: what the operation still uses is kept until it is over."""

from __future__ import annotations

import pytest
from support.processes import assert_all_ended_well, run_processes

INTERRUPTED = """
import gc
import os
import signal
import time
import weakref

import numpy as np
import rabit

rabit.init()
rank = rabit.rank()


class Interrupted(Exception):
    pass


def interrupt(*_):
    raise Interrupted


def call(array):
    return {
        "allreduce": lambda: rabit.allreduce(array, name="x", op=rabit.Sum),
        "allreduce_": lambda: rabit.allreduce_(array, name="x", op=rabit.Sum),
        "broadcast": lambda: rabit.broadcast(array, 1, name="x"),
        "broadcast_": lambda: rabit.broadcast_(array, 1, name="x"),
        "allgather": lambda: rabit.allgather(array, name="x"),
    }[os.environ["CALL"]]()


signal.signal(signal.SIGALRM, interrupt)
for _ in range(int(os.environ["BEFORE"])):
    call(np.ones(20_000, np.float32))
rabit.barrier()
if rank == 0:
    array = np.ones(20_000, np.float32)
    is_there = weakref.ref(array)
    signal.setitimer(signal.ITIMER_REAL, 0.03)
    try:
        call(array)
        raise SystemExit("it was not interrupted")
    except Interrupted:
        pass
    del array
    gc.collect()
    assert is_there() is not None, "the memory of an operation in flight was freed"
    rabit.barrier(name="interrupted")
    rabit.barrier(name="over")
    for _ in range(200):  # what is over is freed with a later call
        rabit.barrier(name="later")
    assert is_there() is None, "the memory of an operation that is over is kept"
else:
    rabit.barrier(name="interrupted")
    call(np.ones(20_000, np.float32))
    rabit.barrier(name="over")
    for _ in range(200):
        rabit.barrier(name="later")
result = call(np.full(20_000, rank + 1.0, np.float32))  # the name is free again
expected = {"allgather": 1.0, "allreduce": 3.0, "allreduce_": 3.0}.get(os.environ["CALL"], 2.0)
assert result[0] == expected, result
"""


@pytest.mark.parametrize("before", ["0", "2"], ids=["first", "again"])
@pytest.mark.parametrize(
    "call", ["allreduce", "allreduce_", "broadcast", "broadcast_", "allgather"]
)
def test_an_interrupted_call_keeps_its_memory_until_it_is_over(call, before, tmp_path):
    environ = {"CALL": call, "BEFORE": before}
    assert_all_ended_well(run_processes(2, INTERRUPTED, tmp_path, environ))
