"""Ordered operations against NumPy, on threads."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from support import oracle

import rabit
from rabit import DType, ReduceOp
from rabit.testing import run_ranks

JOBS = [(1, "auto"), (2, "shm"), (3, "shm"), (4, "shm"), (2, "tcp"), (3, "tcp")]


def inputs(dtype, shape, size):
    return [oracle.values(dtype, shape, rank) for rank in range(size)]


@pytest.mark.parametrize(("size", "transport"), JOBS)
def test_every_ordered_operation(size, transport):
    def on_rank(engine):
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


def test_what_cannot_be_written_or_does_not_fit_is_refused():
    def on_rank(engine):
        fixed = np.ones(4)
        fixed.flags.writeable = False
        with pytest.raises(rabit.InvalidArgument, match="read-only"):
            rabit.ordered_allreduce_(fixed)
        with pytest.raises(rabit.InvalidArgument, match="not contiguous"):
            rabit.ordered_allreduce_(np.ones((4, 4))[:, 1])
        with pytest.raises(rabit.Unsupported, match="complex"):
            rabit.ordered_allreduce_(np.ones(4, np.complex128))
        with pytest.raises(rabit.InvalidArgument, match="need one type"):
            rabit.ordered_allgather_into(np.ones(8), np.ones(4, np.float32))
        with pytest.raises(rabit.InvalidArgument, match="does not fit 2 ranks"):
            rabit.ordered_allgather_into(np.ones(9), np.ones(4))
        assert (rabit.ordered_allreduce_(np.ones(2), rabit.Sum) == 2).all()

    run_ranks(2, on_rank, "shm")


def test_calls_of_different_size_end_in_an_error_that_names_the_cause():
    seen = []

    def on_rank(engine):
        try:
            rabit.ordered_allreduce_(np.ones(4 + engine.rank), timeout=0.3)
        except rabit.RabitError as error:
            seen.append(str(error))

    with contextlib.suppress(rabit.RabitError):  # a failed engine does not stop cleanly
        run_ranks(2, on_rank, "shm")
    assert len(seen) == 2
    assert any("same ordered calls in the same order" in each for each in seen), seen
