"""Ordered operations against NumPy, on threads."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
from support import oracle

import rabit
from rabit import DType, ReduceOp, _native
from rabit.testing import run_ranks

JOBS = [(1, "auto"), (2, "shm"), (3, "shm"), (4, "shm"), (2, "tcp"), (3, "tcp")]


def inputs(dtype, shape, size):
    return [oracle.values(dtype, shape, rank) for rank in range(size)]


@pytest.fixture(params=["extension module", "cffi"])
def prepare(request):
    """Makes the ordered allreduces of an engine go one way or the other."""

    def prepare(engine):
        native = engine._native
        if request.param == "cffi":
            native.calls = None
        elif native.calls is None:
            pytest.skip("rabit_calls was not built")

    return prepare


@pytest.mark.parametrize(("size", "transport"), JOBS)
def test_every_ordered_operation(size, transport, prepare):
    def on_rank(engine):
        prepare(engine)
        rank = engine.rank
        for dtype in oracle.PLAIN_DTYPES:
            for op in ReduceOp:
                if not oracle.supports(dtype, op):
                    continue
                arrays = inputs(dtype, (7, 11), size)
                mine = arrays[rank].copy()
                found = rabit.ordered_allreduce_(mine, op)
                assert found is mine
                oracle.assert_equal(found, oracle.reduced(arrays, op), dtype, f"{dtype} {op}")
        for count in oracle.counts(size):
            arrays = inputs(DType.FLOAT32, (count,), size)
            found = rabit.ordered_allreduce_(arrays[rank].copy(), rabit.Sum)
            expected = oracle.reduced(arrays, ReduceOp.SUM)
            oracle.assert_equal(found, expected, DType.FLOAT32, f"{count} elements")

        mine = np.full((2, 3), rank, np.int32)
        everything = np.empty((2 * size, 3), np.int32)
        assert rabit.ordered_allgather_into(everything, mine) is everything
        assert (everything == np.repeat(np.arange(size), 2)[:, None]).all()

        parts, received = np.arange(size) + 10 * rank, np.empty(size, np.int64)
        rabit.ordered_alltoall_into(received, parts)
        assert (received == 10 * np.arange(size) + rank).all()

        own = np.empty(1, np.int64)
        rabit.ordered_reducescatter_into(own, parts, rabit.Sum)
        assert own[0] == 10 * size * (size - 1) // 2 + size * rank

        value = np.array([float(rank)])
        rabit.ordered_broadcast_(value, size - 1)
        assert value[0] == size - 1
        rabit.ordered_barrier()

    run_ranks(size, on_rank, transport)


def test_ordered_calls_among_some_of_the_ranks_and_of_another_tensor_type():
    def on_rank(engine):
        pair = rabit.ProcessSet([0, 2])
        pair.register(engine)
        if engine.rank != 1:
            bits = np.full(5, 0x3F80, np.uint16)  # ones
            rabit.ordered_allreduce_(rabit.TensorView.bfloat16(bits), rabit.Sum, pair)
            assert (bits == 0x4000).all()
        total = np.ones(3)
        rabit.ordered_allreduce_(total, rabit.Sum)
        assert (total == 3).all()

    run_ranks(3, on_rank, "shm")


def test_what_cannot_be_written_or_does_not_fit_is_refused(prepare):
    def on_rank(engine):
        prepare(engine)
        rabit.ordered_allreduce_(np.ones(4))  # from now on float64 is known
        fixed = np.ones(4)
        fixed.flags.writeable = False
        with pytest.raises(rabit.InvalidArgument, match="read-only"):
            rabit.ordered_allreduce_(fixed)
        with pytest.raises(rabit.InvalidArgument, match="not contiguous"):
            rabit.ordered_allreduce_(np.ones((4, 4))[:, 1])
        with pytest.raises(rabit.Unsupported, match="float128"):
            rabit.ordered_allreduce_(np.ones(4, np.longdouble))
        with pytest.raises(rabit.Unsupported, match="byte order"):
            rabit.ordered_allreduce_(np.ones(4, ">f8"))
        with pytest.raises((TypeError, OverflowError)):
            rabit.ordered_allreduce_(np.ones(4), "sum")
        with pytest.raises(ValueError, match="NaN"):
            rabit.ordered_allreduce_(np.ones(4), timeout=float("nan"))
        with pytest.raises(rabit.Unsupported, match="band of float64 is not defined"):
            rabit.ordered_allreduce_(np.ones(4), rabit.BitwiseAnd)
        with pytest.raises(rabit.InvalidArgument, match="need one type"):
            rabit.ordered_allgather_into(np.ones(8), np.ones(4, np.float32))
        with pytest.raises(rabit.InvalidArgument, match="does not fit 2 ranks"):
            rabit.ordered_allgather_into(np.ones(9), np.ones(4))
        assert (rabit.ordered_allreduce_(np.ones(2), rabit.Sum) == 2).all()

    run_ranks(2, on_rank, "shm")


def test_an_ordered_call_of_a_closed_engine_says_so(prepare):
    def on_rank(engine):
        prepare(engine)
        rabit.ordered_allreduce_(np.ones(2))
        engine.close()
        with pytest.raises(rabit.NotInitialized, match="has been shut down"):
            rabit.ordered_allreduce_(np.ones(2))

    run_ranks(2, on_rank, "shm")


def test_an_ordered_call_in_a_forked_child_says_so(prepare):
    def on_rank(engine):
        prepare(engine)
        value = np.ones(2)
        rabit.ordered_allreduce_(value)
        child = os.fork()
        if child == 0:
            try:
                rabit.ordered_allreduce_(value)
            except rabit.NotInitialized as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    run_ranks(1, on_rank, "auto")


def test_calls_of_different_size_end_in_an_error_that_names_the_cause(prepare):
    seen = []

    def on_rank(engine):
        prepare(engine)
        try:
            rabit.ordered_allreduce_(np.ones(4 + engine.rank), timeout=0.3)
        except rabit.RabitError as error:
            seen.append(str(error))

    with contextlib.suppress(rabit.RabitError):  # a failed engine does not stop cleanly
        run_ranks(2, on_rank, "shm")
    assert len(seen) == 2
    assert any("same ordered calls in the same order" in each for each in seen), seen


def test_the_extension_module_refuses_arguments_that_cannot_work():
    module = _native.load_calls()
    if module is None:
        pytest.skip("rabit_calls was not built")
    calls = module.Calls(0, 0, 0, 0, 0, 0, 0, 0)
    array = np.ones(2)
    with pytest.raises(TypeError, match="ordered_allreduce takes 3 arguments, not 1"):
        calls.ordered_allreduce(0)
    with pytest.raises(TypeError, match="run takes 7 arguments, not 0"):
        calls.run()
    with pytest.raises(TypeError, match="start takes 4 arguments, not 1"):
        calls.start(0)
    with pytest.raises(TypeError, match="output takes 1 arguments, not 0"):
        calls.output()
    assert calls.ordered_allreduce(array, 0, float("nan")) is False
    assert calls.ordered_allreduce(array, 0, "soon") is False
    assert calls.ordered_allreduce("text", 0, 1.0) is False
    assert calls.run(0, array, None, None, 1, False, []) is False
    assert calls.start(0, array, None, None) is False
