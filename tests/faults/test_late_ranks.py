"""A rank that comes late, or never: the stall report and the arrival skew."""

from __future__ import annotations

import threading
import time

import numpy as np

import rabit
from rabit.testing import run_ranks

F32 = np.float32


def submit(engine, name, array, **fields):
    view = rabit.TensorView(
        array.ctypes.data, array.shape, rabit.DType[array.dtype.name.upper()], keepalive=array
    )
    request = rabit.Request(
        kind=fields.pop("kind", rabit.Kind.ALLREDUCE), name=name, input=view, output=view, **fields
    )
    return engine.submit([request])[0]


def test_the_stall_report_names_tensor_and_missing_rank(tmp_path, job):
    started = job(
        3,
        """
import sys, time
import numpy as np
import rabit

rabit.init()
rabit.barrier()
if rabit.rank() == 2:
    time.sleep(4)
try:
    rabit.allreduce(np.ones(4), name="late.weight")
except rabit.RabitError as error:
    print("ERROR", type(error).__name__, error)
""",
        RABIT_STALL_WARNING="500ms",
        RABIT_STALL_ABORT="2s",
    )
    started.wait(timeout=60)

    everything = "".join(started.output(rank) for rank in range(3))
    assert "late.weight" in everything
    assert "rank 2" in everything
    assert "the job fails after 2 s (RABIT_STALL_ABORT, --stall-abort)" in everything
    for rank in (0, 1):
        assert "ERROR TimedOut" in started.output(rank)
        assert "late.weight" in started.output(rank)
        assert "2" in started.output(rank)


def test_a_rank_that_never_comes_is_named_with_the_setting_to_raise(job):
    started = job(
        2,
        """
import os
import rabit

if os.environ["RABIT_RANK"] == "0":
    try:
        rabit.init()
    except rabit.RabitError as error:
        print("ERROR", type(error).__name__, error.rank, error)
""",
        RABIT_CONNECT_TIMEOUT="1s",
    )
    started.wait(timeout=60)

    assert "ERROR TimedOut 1 " in started.output(0)
    assert "raise RABIT_CONNECT_TIMEOUT" in started.output(0)


def test_arrival_skew_names_the_rank_that_others_waited_for():
    submitted = [threading.Event() for _ in range(5)]

    def work(engine):
        for step, is_submitted in enumerate(submitted):
            if engine.rank == 1:
                is_submitted.wait(60)
                deadline = time.monotonic() + 0.05
                while time.monotonic() < deadline:
                    pass
            handle = submit(engine, f"step.{step}", np.ones(8, F32))
            if engine.rank == 0:
                is_submitted.set()
            handle.wait(60)
        return engine.statistics()

    statistics = run_ranks(2, work)[0]

    worst = max(statistics["controller"]["waited_for"], key=lambda row: row["total_us"])
    assert worst["rank"] == 1
    assert worst["total_us"] > 100_000
