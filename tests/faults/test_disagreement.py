"""Ranks that disagree about a tensor: what each is told, and that the other tensors go on."""

from __future__ import annotations

import time

import numpy as np
import pytest
import rabit
from rabit.testing import run_ranks

F32 = np.float32


def submit(engine, name, array, **fields):
    view = rabit.TensorView(array.ctypes.data, array.shape, rabit.DType[array.dtype.name.upper()], keepalive=array)
    request = rabit.Request(kind=fields.pop("kind", rabit.Kind.ALLREDUCE), name=name, input=view, output=view, **fields)
    return engine.submit([request])[0]


DISAGREEMENTS = {
    "shape": (lambda r: np.zeros((4,) if r else (2, 2), F32), lambda r: {}, ["float32[4]", "float32[2,2]"]),
    "dtype": (lambda r: np.zeros(4, np.int32 if r else F32), lambda r: {}, ["int32", "float32"]),
    "op": (lambda r: np.zeros(4, F32), lambda r: {"op": rabit.Max if r else rabit.Sum}, ["max", "sum"]),
    "root": (lambda r: np.zeros(4, F32), lambda r: {"kind": rabit.Kind.BROADCAST, "root": r}, ["root", "0", "1"]),
    "kind": (
        lambda r: np.zeros(4, F32),
        lambda r: {"kind": rabit.Kind.BROADCAST, "root": 0} if r else {"root": 0},
        ["broadcast", "allreduce"],
    ),
    "postscale": (lambda r: np.zeros(4, F32), lambda r: {"postscale": 1.0 + r}, ["postscale", "1", "2"]),
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
@pytest.mark.parametrize("is_cached", [False, True], ids=["first", "cached"])
def test_the_error_names_tensor_ranks_and_values(what, is_cached):
    array_of, fields_of, words = DISAGREEMENTS[what]

    def work(engine):
        if is_cached:
            submit(engine, "layer.weight", array_of(0), **fields_of(0)).wait(20)
        wrong = submit(engine, "layer.weight", array_of(engine.rank), **fields_of(engine.rank))
        right = np.ones(3, F32)
        handle = submit(engine, "layer.bias", right)
        with pytest.raises(rabit.Mismatch) as caught:
            wrong.wait(20)
        handle.wait(20)
        again = np.ones(5, F32)
        submit(engine, "layer.weight", again).wait(20)
        return str(caught.value), right.tolist(), again.tolist()

    for text, right, again in run_ranks(2, work):
        assert "layer.weight" in text
        assert "rank 0" in text and "rank 1" in text
        assert all(word in text for word in words), text
        assert right == [2.0] * 3
        assert again == [2.0] * 5


def test_the_stall_report_names_tensor_and_missing_rank(tmp_path, job):
    started = job(3, """
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
""", RABIT_STALL_WARNING="500ms", RABIT_STALL_ABORT="2s")
    started.wait(timeout=60)

    everything = "".join(started.output(rank) for rank in range(3))
    assert "late.weight" in everything
    assert "rank 2" in everything
    for rank in (0, 1):
        assert "ERROR TimedOut" in started.output(rank)
        assert "late.weight" in started.output(rank)
        assert "2" in started.output(rank)


def test_arrival_skew_names_the_rank_that_others_waited_for():
    def work(engine):
        for step in range(5):
            if engine.rank == 1:
                deadline = time.monotonic() + 0.05
                while time.monotonic() < deadline:
                    pass
            array = np.ones(8, F32)
            submit(engine, f"step.{step}", array).wait(20)
        return engine.statistics()

    statistics = run_ranks(2, work)[0]

    worst = max(statistics["controller"]["waited_for"], key=lambda row: row["total_us"])
    assert worst["rank"] == 1
    assert worst["total_us"] > 100_000
