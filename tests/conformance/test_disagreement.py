"""What ranks get when they disagree, or misuse names; the rest of the step continues."""

from __future__ import annotations

import numpy as np
import pytest

import rabit
from rabit.testing import run_ranks


def mismatch(call):
    with pytest.raises(rabit.Mismatch) as caught:
        call()
    return str(caught.value)


def test_shapes_that_differ_are_named_with_both_ranks():
    def on_rank(engine):
        other = rabit.allreduce_async(np.ones(3), name="fine", op=rabit.Sum)
        shape = (64, 3) if engine.rank == 0 else (64, 5)
        message = mismatch(lambda: rabit.allreduce(np.ones(shape, np.float32), name="conv.weight"))

        assert other.result().tolist() == [2.0] * 3
        return message

    for message in run_ranks(2, on_rank):
        assert "'conv.weight'" in message
        assert "float32[64,3]" in message
        assert "float32[64,5]" in message
        assert "rank" in message


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda rank: rabit.allreduce(np.ones(2, "f4" if rank else "f8"), name="w"),
            ("float32", "float64"),
        ),
        (
            lambda rank: rabit.allreduce(np.ones(2), name="w", op=rabit.Max if rank else rabit.Sum),
            ("max", "sum"),
        ),
        (lambda rank: rabit.broadcast(np.ones(2), rank, name="w"), ("0", "1")),
        (
            lambda rank: (rabit.allgather if rank else rabit.allreduce)(np.ones(2), name="w"),
            ("allgather", "allreduce"),
        ),
        (lambda rank: rabit.allreduce(np.ones(2), name="w", prescale_factor=1.0 + rank), ("2",)),
        (lambda rank: rabit.allgather(np.ones((2, 3 + rank)), name="w"), ("3", "4")),
    ],
    ids=["dtype", "op", "root", "kind", "prescale", "rest of the shape"],
)
def test_every_disagreement_names_tensor_and_values(call, words):
    def on_rank(engine):
        message = mismatch(lambda: call(engine.rank))
        # The same name works right after.
        assert rabit.allreduce(1.0, name="w", op=rabit.Sum) == 2.0
        return message

    for message in run_ranks(2, on_rank):
        assert "'w'" in message
        for word in words:
            assert word in message


def test_a_name_in_flight_is_refused_and_nothing_is_lost():
    def on_rank(engine):
        rabit.barrier()
        if engine.rank == 0:
            first = rabit.allreduce_async(1.0, name="twice", op=rabit.Sum)
            with pytest.raises(rabit.InvalidArgument, match="twice"):
                rabit.allreduce_async(1.0, name="twice", op=rabit.Sum)
        rabit.barrier()
        if engine.rank == 1:
            first = rabit.allreduce_async(1.0, name="twice", op=rabit.Sum)
        assert first.result() == 2.0

    run_ranks(2, on_rank)


def test_a_tensor_that_one_rank_never_submits_times_out_and_stays_in_flight():
    def on_rank(engine):
        if engine.rank == 0:
            handle = rabit.allreduce_async(1.0, name="late", op=rabit.Sum)
            with pytest.raises(rabit.TimedOut, match="'late' on rank 0 has not finished after"):
                handle.wait(0.05)
            assert not handle.done()
            rabit.barrier()
            assert handle.result() == 2.0
        else:
            rabit.barrier()
            assert rabit.allreduce(1.0, name="late", op=rabit.Sum) == 2.0

    run_ranks(2, on_rank)


def test_a_stall_that_is_too_long_aborts_and_names_tensor_and_rank():
    def on_rank(engine):
        if engine.rank == 1:
            release.wait(20)
            return None
        try:
            with pytest.raises(rabit.RabitError) as caught:
                rabit.allreduce(1.0, name="alone")
        finally:
            release.set()
        return str(caught.value)

    import threading

    release = threading.Event()
    with pytest.raises(rabit.RabitError):  # closing after the abort tells of it as well
        first, _ = run_ranks(2, on_rank, stall_warning=0.1, stall_abort=0.5)
        assert "'alone'" in first
        assert "1" in first
        raise rabit.Aborted(first)


def test_a_dropped_handle_lets_its_operation_finish():
    def on_rank(engine):
        array = np.ones(1000)
        rabit.allreduce_async_(array, name="dropped", op=rabit.Sum)
        rabit.allreduce_async(np.ones(100_000), name="dropped too", op=rabit.Sum)
        rabit.barrier()
        rabit.barrier()
        return array.sum()

    assert run_ranks(2, on_rank) == [2000.0, 2000.0]


def read_only(bad):
    array = np.ones(2)
    array.setflags(write=not bad)
    return array


USUAL = (TypeError, ValueError, OverflowError)
ONES = np.ones(2)
REFUSALS = {
    "root": (
        lambda bad: rabit.broadcast(np.ones(2), 7 if bad else 0, name="w"),
        ("broadcast 'w'", "root_rank is 7"),
    ),
    "number of splits": (
        lambda bad: rabit.alltoall(np.ones(4), splits=[1] * 4 if bad else [2, 2], name="w"),
        ("alltoall 'w'", "[1, 1, 1, 1]"),
    ),
    "uneven rows": (
        lambda bad: rabit.alltoall(np.ones(5 if bad else 4), name="w"),
        ("alltoall 'w'", "5 rows"),
    ),
    "object": (
        lambda bad: rabit.allgather_object((lambda: None) if bad else 1, name="w"),
        ("allgather 'w.data'", "type function cannot be pickled"),
    ),
    "op": (
        lambda bad: rabit.allreduce(ONES, name="w", op=99 if bad else rabit.Sum),
        ("allreduce 'w'", "op is 99"),
    ),
    "average and op": (
        lambda bad: rabit.allreduce(ONES, average=bad or None, name="w", op=rabit.Sum),
        ("allreduce 'w'", "both average=True"),
    ),
    "dtype": (
        lambda bad: rabit.allreduce_async(ONES.astype(np.longdouble if bad else float), name="w").wait(),
        ("allreduce 'w'", "refused it: elements of type float128"),
    ),
    "read-only": (
        lambda bad: rabit.allreduce_(read_only(bad), name="w"),
        ("allreduce 'w'", "refused it: the array is read-only"),
    ),
    "priority": (
        lambda bad: rabit.allreduce(ONES, name="w", priority=1.5 if bad else 1),
        ("allreduce 'w'", "priority 1.5 are not both integers of 32 bits"),
    ),
    "priority of a handle": (
        lambda bad: rabit.allgather_async(ONES, name="w", priority=1 << (70 * bad)).wait(),
        ("allgather 'w'", "are not both integers of 32 bits"),
    ),
    "factor": (
        lambda bad: rabit.reduce(ONES, 0, name="w", prescale_factor="x" if bad else 1.0),
        ("reduce 'w'", "prescale_factor is 'x'"),
    ),
    "seed": (
        lambda bad: rabit.allreduce(ONES, name="w", seed=-bad),
        ("allreduce 'w'", "refused it: the seed is -1"),
    ),
    "residual": (
        lambda bad: rabit.allreduce(ONES, name="w", residual=np.zeros(3) if bad else None),
        ("allreduce 'w'", "refused it: the residual is float64[3]"),
    ),
    "compression": (
        lambda bad: rabit.allreduce(
            ONES, name="w", compression="fp16" if bad else rabit.Compression.none
        ),
        ("allreduce 'w'", "compression is 'fp16'"),
    ),
    "compression of another": (
        lambda bad: rabit.reducescatter(
            ONES, "w", rabit.Compression.fp16 if bad else rabit.Compression.none
        ),
        ("reducescatter 'w'", "takes no compression"),
    ),
    "backend": (
        lambda bad: rabit.barrier(name="w", backend="nope" if bad else ""),
        ("barrier 'w'", "unknown backend 'nope'"),
    ),
    "one of a group": (
        lambda bad: rabit.grouped_allreduce([ONES, ONES.astype(np.longdouble if bad else float)], name="w"),
        ("allreduce 'w.0'", "'w.1' on rank", "elements of type float128"),
    ),
    "object for an array": (
        lambda bad: rabit.broadcast(object() if bad else ONES, 0, name="w"),
        ("broadcast 'w'", "type object"),
    ),
}


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("how", REFUSALS)
def test_what_one_rank_refuses_fails_on_the_others(how, culprit):
    call, words = REFUSALS[how]

    def on_rank(engine):
        for _ in range(2):
            with pytest.raises((rabit.RabitError, *USUAL)) as caught:
                call(engine.rank == culprit)
            # The same name works right after.
            assert rabit.allreduce(1.0, name="w", op=rabit.Sum) == 2.0
        return caught.value

    error = run_ranks(2, on_rank)[1 - culprit]
    assert isinstance(error, rabit.InvalidArgument)
    assert f"rank {culprit} refused it" in str(error)
    assert error.rank == culprit
    for word in words:
        assert word in str(error)


@pytest.mark.parametrize("how", REFUSALS)
def test_what_all_ranks_refuse_is_over_on_all(how):
    call, _ = REFUSALS[how]

    def on_rank(engine):
        for _ in range(2):
            with pytest.raises((rabit.RabitError, *USUAL)):
                call(True)
            call(False)

    run_ranks(2, on_rank)


UNNAMED = {
    "allreduce": lambda value: rabit.allreduce(value),
    "allgather": lambda value: rabit.allgather(value),
    "grouped_allreduce": lambda value: rabit.grouped_allreduce([value, value]),
    "gather": lambda value: rabit.gather(value, 0),
    "message": lambda value: (
        rabit.send(value, 1) if rabit.rank() == 0 else rabit.recv(np.asarray(value), 0)
    ),
}


@pytest.mark.parametrize("kind", UNNAMED)
def test_a_refused_call_without_a_name_takes_its_number(kind):
    call = UNNAMED[kind]

    def on_rank(engine):
        call(np.ones(2))
        for culprit in (0, 1):
            value = np.ones(2, np.longdouble if engine.rank == culprit else float)
            with pytest.raises((rabit.InvalidArgument, rabit.Unsupported), match="float128"):
                call(value)
            call(np.ones(2))

    run_ranks(2, on_rank)


def test_a_refusal_stays_in_its_process_set():
    def on_rank(engine):
        pair = rabit.add_process_set([0, 1])
        if engine.rank < 2:
            value = np.ones(2, np.longdouble if engine.rank else float)
            with pytest.raises((rabit.InvalidArgument, rabit.Unsupported), match="float128"):
                rabit.allreduce(value, name="w", process_set=pair)
        assert rabit.allreduce(1.0, name="w", op=rabit.Sum) == 3.0
        if engine.rank < 2:
            assert rabit.allreduce(1.0, name="w", op=rabit.Sum, process_set=pair) == 2.0

    run_ranks(3, on_rank)


def test_an_interrupt_is_no_refusal():
    class Interrupted:
        def __array__(self, *_, **__):
            raise KeyboardInterrupt

    def on_rank(engine):
        if engine.rank == 0:
            with pytest.raises(KeyboardInterrupt):
                rabit.allreduce(Interrupted(), name="w")
        assert rabit.allreduce(1.0, name="w", op=rabit.Sum) == 2.0

    run_ranks(2, on_rank)
