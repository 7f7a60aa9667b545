"""Arguments of the operations, and life cycle, on a job of one."""

from __future__ import annotations

import gc
import inspect
import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rabit
from rabit import InvalidArgument, NotInitialized
from rabit.engine import group_handle, repeats
from rabit.testing import run_ranks


@pytest.fixture
def job():
    rabit.init()
    yield
    rabit.shutdown()


@pytest.mark.parametrize(
    "call",
    [
        rabit.rank,
        rabit.size,
        rabit.local_rank,
        rabit.cross_size,
        rabit.is_homogeneous,
        rabit.barrier,
        rabit.statistics,
        rabit.default_engine,
        rabit.global_process_set.size,
        lambda: rabit.allreduce(1.0),
        lambda: rabit.add_process_set([0]),
    ],
)
def test_before_init_and_after_shutdown(call):
    assert not rabit.is_initialized()
    with pytest.raises(NotInitialized, match=r"Call rabit.init\(\) first"):
        call()
    rabit.init()
    rabit.shutdown()
    with pytest.raises(ValueError, match=r"Call rabit.init\(\) first"):
        call()


def test_init_is_idempotent_and_can_be_repeated():
    for _ in range(3):
        rabit.init()
        first = rabit.default_engine()
        rabit.init()
        assert rabit.default_engine() is first
        rabit.shutdown()
        rabit.shutdown()


def test_init_takes_an_mpi4py_communicator_only():
    with pytest.raises(rabit.Unsupported, match=r"process_sets=\[ProcessSet"):
        rabit.init(comm=[0, 1])
    assert not rabit.is_initialized()


def test_average_is_the_old_form_of_op(job):
    assert rabit.allreduce(3.0, average=False) == 3.0
    with pytest.raises(InvalidArgument, match="both average=True and op"):
        rabit.allreduce(1.0, average=True, op=rabit.Sum)
    with pytest.raises(InvalidArgument, match=r"op is 2, which is not a reduction. Known: average"):
        rabit.allreduce(1.0, op=2)


def test_wait_returns_what_result_returns(job):
    x = np.arange(4.0)
    assert rabit.allreduce_async(x, name="w").wait().tolist() == x.tolist()
    assert rabit.allreduce_async_(x, name="v").wait() is x
    rows, splits = rabit.alltoall_async(x, [4], name="s").wait()
    assert (rows.tolist(), splits) == (x.tolist(), [4])
    for _ in range(2):  # the second call is one that has come before
        assert [
            each.tolist() for each in rabit.grouped_allreduce_async([x, x], name="g").wait()
        ] == [x.tolist()] * 2
        assert rabit.grouped_allgather_async([x], name="h").wait()[0].tolist() == x.tolist()
    assert rabit.barrier_async().wait() is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rabit.allreduce(1.0, prescale_factor="two"),
            "prescale_factor is 'two'.*Pass numbers",
        ),
        (lambda: rabit.reducescatter([1.0], postscale_factor=None), "postscale_factor None"),
        (lambda: rabit.alltoall([1.0], splits=1), "splits are 1. Pass integers"),
        (lambda: rabit.alltoall([1.0], splits=[1.5]), r"splits are \[1.5\]. Pass integers"),
        (lambda: rabit.grouped_allreduce(3), "a list of one or more tensors, not int"),
        (lambda: rabit.grouped_allgather([]), "a list of one or more tensors, not an empty list"),
        (lambda: rabit.allreduce(1.0, backend=3), "the backend is 3 of type int"),
    ],
)
def test_arguments_that_are_of_another_kind_are_refused_in_words(job, call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()


def test_tensors_are_checked_and_named(job):
    with pytest.raises(rabit.Unsupported, match=r"allreduce 'w' on rank 0: .*float128"):
        rabit.allreduce(np.ones(2, np.longdouble), name="w")
    with pytest.raises(InvalidArgument, match=r"allreduce 'w' on rank 0: .*not contiguous"):
        rabit.allreduce_(np.ones((3, 4)).T, name="w")
    with pytest.raises(InvalidArgument, match=r"broadcast 'w' on rank 0: .*read-only"):
        rabit.broadcast_(b"abc", 0, name="w")
    assert rabit.allreduce(np.arange(6).reshape(2, 3).T, name="w").tolist() == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda: rabit.broadcast(1.0, 1),
        lambda: rabit.broadcast_(np.ones(1), -1),
        lambda: rabit.reduce(1.0, 7),
        lambda: rabit.gather(1.0, 1),
        lambda: rabit.scatter(1.0, 1),
    ],
)
def test_roots_are_members(job, call):
    with pytest.raises(
        InvalidArgument, match=r"root_rank is -?\d, which is not among the ranks \[0\]"
    ):
        call()


def test_a_rank_does_not_write_to_itself(job):
    with pytest.raises(InvalidArgument, match="dst is this rank itself"):
        rabit.send(1.0, 0)
    with pytest.raises(InvalidArgument, match="src is 3, which is not among"):
        rabit.recv(np.ones(1), 3)


@pytest.mark.parametrize("splits", [[], [1, 2], [4], [-3]])
def test_splits_add_up(job, splits):
    for call in (
        lambda: rabit.alltoall(np.ones(3), splits),
        lambda: rabit.scatter(np.ones(3), 0, splits),
    ):
        with pytest.raises(InvalidArgument, match="splits are"):
            call()


def test_bitwise_operations_need_integers(job):
    with pytest.raises(rabit.RabitError, match="float32"):
        rabit.allreduce(np.ones(3, np.float32), name="w", op=rabit.BitwiseAnd)


def test_grouped_operations_need_a_list(job):
    for tensors in ([], np.ones(3), None):
        with pytest.raises(InvalidArgument, match="a list of one or more tensors"):
            rabit.grouped_allreduce(tensors)


def test_a_list_without_tensors_is_refused_on_the_other_ranks_too():
    def on_rank(engine):
        tensors = [np.ones(2)] if engine.rank else []
        with pytest.raises(
            InvalidArgument, match="a list of one or more tensors, not an empty list"
        ):
            rabit.grouped_allreduce(tensors, name="g")
        assert len(rabit.grouped_allreduce([np.ones(2)], name="g")) == 1

    run_ranks(2, on_rank)


def test_a_group_may_be_any_iterable_of_tensors(job):
    named = {"a": np.ones(2), "b": np.zeros(3)}

    assert [len(each) for each in rabit.grouped_allreduce(named.values())] == [2, 3]
    assert [len(each) for each in rabit.grouped_allgather(iter([np.ones(4)]))] == [4]


def test_an_asynchronous_form_has_the_arguments_of_the_blocking_one():
    for name in (
        "allgather",
        "broadcast",
        "broadcast_",
        "alltoall",
        "gather",
        "scatter",
        "send",
        "recv",
        "barrier",
    ):
        asynchronous = f"{name.rstrip('_')}_async{'_' * name.endswith('_')}"
        blocking, started = getattr(rabit, name), getattr(rabit, asynchronous)
        assert started.__name__ == asynchronous
        assert inspect.signature(started) == inspect.signature(blocking)


def test_reducescatter_takes_no_compression(job):
    with pytest.raises(InvalidArgument, match="takes no compression"):
        rabit.reducescatter(np.ones(3), compression=rabit.Compression.fp16)


def test_objects_that_cannot_be_pickled(job):
    with pytest.raises(InvalidArgument, match="cannot be pickled"):
        rabit.broadcast_object(lambda: None)


def test_what_cannot_be_pickled_is_told_with_its_place(job):
    values = {"a": [1, {"b": lambda: None}], "c": 3}
    values["itself"] = values

    text = "the object at ['a'][1]['b'] of type function cannot be pickled: "
    with pytest.raises(InvalidArgument, match=re.escape(text)):
        rabit.allgather_object(values)


@pytest.mark.parametrize("name", [None, "", "said"])
def test_objects_of_every_length_come_back(job, name):
    for count in (0, 1, 400, 504, 600, 100_000):
        said = {"text": "x" * count, "array": np.arange(3)}
        assert rabit.broadcast_object(said, name=name) is said
        (found,) = rabit.allgather_object(said, name=name)
        assert found["text"] == said["text"] and found["array"].tolist() == [0, 1, 2]


def test_calls_for_ever_other_tensors_are_seldom_kept(job):
    repeats = rabit.default_engine().repeats

    def kept(rows):
        rabit.allgather(np.ones(rows), name="rows")
        return next(call for key, call in repeats.kept.items() if key[1] == "rows")

    made = [kept(rows) for rows in range(1, 34)]
    assert len({id(each) for each in made}) == 7  # the first, and misses 1, 2, 4, 8, 16 and 32
    again = [kept(50) for _ in range(40)]
    assert again[-1] is not made[-1] and again[-1] is again[-2]
    rabit.allgather([1.0, 2.0], name="list")
    rabit.allgather(np.float32(1), name="scalar")
    assert ("allgather", "list", 0) not in repeats.kept
    assert ("allgather", "scalar", 0) not in repeats.kept


def test_process_sets(job):
    low = rabit.ProcessSet([0])
    with pytest.raises(InvalidArgument, match="is not registered"):
        rabit.allreduce(1.0, process_set=low)
    rabit.add_process_set(low)
    assert (low.size(), low.rank(), low.included()) == (1, 0, True)
    assert rabit.allreduce(2.0, process_set=low) == 2.0
    with pytest.raises(InvalidArgument, match="registered already"):
        rabit.add_process_set(low)
    assert rabit.remove_process_set(low)
    assert not rabit.remove_process_set(rabit.global_process_set)
    assert repr(rabit.ProcessSet([2, 1])) == "ProcessSet(ranks=[1, 2], process_set_id=None)"


CALLS = [
    lambda **given: rabit.allreduce(np.ones(2), **given),
    lambda **given: rabit.allgather(np.ones(2), **given),
    lambda **given: rabit.grouped_allreduce([np.ones(2)], **given),
]


@pytest.mark.parametrize("process_set", [1, [0], None])
@pytest.mark.parametrize(
    "call",
    [
        *CALLS,
        lambda process_set: rabit.broadcast_object({}, 0, process_set=process_set),
        lambda process_set: rabit.ordered_allreduce_(np.ones(2), process_set=process_set),
        lambda process_set: rabit.any_rank(True, process_set=process_set),
    ],
)
def test_what_is_no_process_set_is_refused(job, call, process_set):
    with pytest.raises(
        InvalidArgument, match=r"process_set is .*, which is not a ProcessSet\. Pass"
    ):
        call(process_set=process_set)


@pytest.mark.parametrize("name", [["a"], ("a", ["b"])])
@pytest.mark.parametrize("call", CALLS)
def test_a_name_that_is_no_key_is_refused(job, call, name):
    with pytest.raises(InvalidArgument, match=r"the name .* of type (list|tuple) is not text"):
        call(name=name)


def test_queries_are_true_here(job):
    assert rabit.gloo_built() is rabit.gloo_enabled() is rabit.ccl_built() is False
    assert rabit.capabilities()["version"] == rabit.__version__
    assert isinstance(rabit.mpi_enabled(), bool)


@pytest.mark.parametrize(
    ("found", "code"), [({"version": "2.27.3"}, 22703), ({"unavailable": "no such file"}, 0)]
)
def test_nccl_built_is_the_code_of_the_version(monkeypatch, found, code):
    monkeypatch.setattr(rabit.diagnostics.capabilities, "nccl_library", lambda path: found)

    assert rabit.nccl_built() == code


def test_bfloat16_arrays_of_ml_dtypes_come_back(job):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.ones(3, ml_dtypes.bfloat16)

    assert rabit.allreduce(array).dtype == array.dtype
    assert rabit.allgather(array).dtype == array.dtype


def test_a_repeated_call_works_on_the_memory_and_the_name_of_its_own(job):
    first, second = np.full(3, 2.0, np.float32), np.full(3, 5.0, np.float32)
    for array, name in ((first, "a"), (second, "b"), (first, "b")):
        rabit.allreduce_(array, name=name, op=rabit.Sum, prescale_factor=2.0)
    assert first.tolist() == [8.0] * 3
    assert second.tolist() == [10.0] * 3
    assert (
        rabit.allreduce(second, name="a", op=rabit.Sum, prescale_factor=3.0).tolist() == [30.0] * 3
    )
    assert second.tolist() == [10.0] * 3


def test_calls_of_one_shape_that_differ_otherwise_do_not_mix(job):
    array = np.full(4, 3.0, np.float32)
    for _ in range(2):
        assert rabit.allreduce(array, name="x", prescale_factor=2.0).tolist() == [6.0] * 4
        assert rabit.allreduce(array, name="x", postscale_factor=5.0).tolist() == [15.0] * 4
        assert rabit.allreduce(array.view(np.int32), name="x", op=rabit.Max).dtype == np.int32
        assert rabit.broadcast(array, 0, name="x").tolist() == [3.0] * 4
        rabit.barrier(name="x")


def test_more_shapes_than_are_remembered(job):
    for length in [*range(1, 600), *range(1, 600)]:
        array = np.full(length, float(length), np.float32)
        assert rabit.allreduce(array, name="x", op=rabit.Sum)[-1] == length


def test_a_refused_call_leaves_the_next_one_alone(job):
    array = np.ones(2, np.float32)
    rabit.allreduce_(array, name="x")
    with pytest.raises(InvalidArgument, match="NUL"):
        rabit.allreduce_(array, name="x\0")
    assert rabit.allreduce_(array, name="x").tolist() == [1.0, 1.0]


def test_threads_call_at_once_with_arrays_of_one_shape(job):
    def work(number: int) -> None:
        for turn in range(200):
            array = np.full(2, float(turn), np.float32)
            rabit.allreduce_(array, name=f"t{number}", op=rabit.Sum, prescale_factor=number)
            assert array.tolist() == [turn * number] * 2

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))


def test_ordered_calls_that_differ_do_not_mix(job):
    values = np.arange(4, dtype=np.float32)
    for _ in range(2):
        assert rabit.ordered_allreduce_(values.copy(), rabit.Sum).tolist() == [0.0, 1.0, 2.0, 3.0]
        assert rabit.ordered_allreduce_(values[:3].copy(), rabit.Max).tolist() == [0.0, 1.0, 2.0]
        counts = np.arange(4, dtype=np.int64)
        assert rabit.ordered_broadcast_(counts, 0).tolist() == [0, 1, 2, 3]
        assert rabit.ordered_allgather_into(np.empty(4, np.float32), values).tolist() == [
            0,
            1,
            2,
            3,
        ]
    with pytest.raises(InvalidArgument):
        rabit.ordered_broadcast_(values, 7)
    with pytest.raises((TypeError, OverflowError)):
        rabit.ordered_allreduce_(values, "sum")
    assert rabit.ordered_allreduce_(values, rabit.Sum).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_call_that_comes_again_looks_at_its_array(job):
    array = np.ones((2, 3), np.float32)
    for _ in range(3):
        assert rabit.allreduce_(array, name="x", op=rabit.Sum) is array
    fixed = array.copy()
    fixed.flags.writeable = False
    with pytest.raises(InvalidArgument, match="'x' on rank 0: the array is read-only"):
        rabit.allreduce_(fixed, name="x", op=rabit.Sum)
    with pytest.raises(InvalidArgument, match="'x' on rank 0: the output is not contiguous"):
        rabit.allreduce_(np.ones((3, 2), np.float32).T, name="x", op=rabit.Sum)
    assert rabit.allreduce_(array, name="x", op=rabit.Sum, prescale_factor=2.0)[1, 2] == 2
    assert rabit.allreduce_(array.view(np.int32), name="x", op=rabit.Max).dtype == np.int32
    assert rabit.allreduce_(array, name="x", op=rabit.Sum)[1, 2] == 2


def test_without_the_extension_module_calls_come_again_as_well(job):
    native = rabit.default_engine()._native
    native.calls = None
    array = np.ones(3, np.float32)
    for _ in range(3):
        assert rabit.allreduce_(array, name="x", op=rabit.Sum, prescale_factor=2.0) is array
        rabit.ordered_allreduce_(array)
    assert array.tolist() == [8.0] * 3


def test_a_call_that_comes_again_fails_like_the_first():
    def on_rank(engine):
        array = np.ones(4, np.float32)
        for _ in range(3):
            rabit.allreduce_(array, name="x", op=rabit.Sum)
        other = rabit.Max if engine.rank else rabit.Sum
        with pytest.raises(rabit.Mismatch, match="'x'"):
            rabit.allreduce_(array, name="x", op=other)
        array[:] = 1.0
        rabit.allreduce_(array, name="x", op=rabit.Sum)
        assert array.tolist() == [2.0] * 4
        engine.close()
        with pytest.raises(NotInitialized, match="has been shut down"):
            rabit.allreduce_(array, name="x", op=rabit.Sum)

    run_ranks(2, on_rank)


def test_a_list_that_comes_again_needs_no_handles_and_has_them_for_who_asks(monkeypatch):
    monkeypatch.setattr(group_handle, "SLICE_MS", 0)  # every wait takes several calls

    def on_rank(engine):
        arrays = [np.empty(4, np.float32) for _ in range(5)]
        for step in range(6):
            for number, each in enumerate(arrays):
                each[:] = number
            group = rabit.grouped_allreduce_async_(arrays, name="x", op=rabit.Sum)
            assert len(group) == 5
            if step == 3:
                assert [each.name for each in group.handles] == [f"x.{i}" for i in range(5)]
            if step == 4:
                group.wait()
                assert all(each.done() and each.has_succeeded for each in group.handles)
            assert all(given is each for given, each in zip(group.result(), arrays, strict=True))
            assert [each[0] for each in arrays] == [0, 2, 4, 6, 8]
            assert group.done() and group.result()[1] is arrays[1]
        parts = [np.full(2, engine.rank, np.float32) for _ in range(3)]
        for _ in range(3):
            sums = rabit.grouped_reducescatter(arrays, name="s", op=rabit.Sum)
            assert [each.tolist() for each in sums] == [[4.0 * i] * 2 for i in range(5)]
            gathered = rabit.grouped_allgather(parts, name="g")
            assert [each.tolist() for each in gathered] == [[0.0, 0.0, 1.0, 1.0]] * 3

    run_ranks(2, on_rank)


def arrays_that_came_before():
    """What 'x' has summed up three times, as a list."""
    arrays = [np.ones(4, np.float32) for _ in range(3)]
    for _ in range(3):
        rabit.grouped_allreduce_(arrays, name="x", op=rabit.Sum)
    return arrays


def test_of_a_list_that_comes_again_one_that_fails_is_told_and_the_others_end():
    def on_rank(engine):
        arrays = arrays_that_came_before()
        other = rabit.Max if engine.rank else rabit.Sum
        for _ in range(2):
            with pytest.raises(rabit.Mismatch, match=r"'x\.0'"):
                rabit.grouped_allreduce_(arrays, name="x", op=other)
        for each in arrays:
            each[:] = 1.0
        rabit.grouped_allreduce_(arrays, name="x", op=rabit.Sum)
        assert [each.tolist() for each in arrays] == [[2.0] * 4] * 3

    run_ranks(2, on_rank)


def test_a_list_that_comes_again_and_is_dropped_lets_its_operations_end():
    def on_rank(engine):
        for step in range(6):
            arrays = [np.full(1000, 1.0, np.float32) for _ in range(3)]
            group = rabit.grouped_allreduce_async_(arrays, name="x", op=rabit.Sum)
            if step % 2:
                group.wait()
            del group
            gc.collect()
            while engine._native.orphans:  # a barrier waits for ranks, not for operations
                engine._native.sweep()
                time.sleep(0.001)
            assert arrays[0][0] == 2.0

    run_ranks(2, on_rank)


def test_a_list_that_comes_again_has_its_own_time_to_wait():
    def on_rank(engine):
        arrays = arrays_that_came_before()
        if engine.rank == 0:
            group = rabit.grouped_allreduce_async_(arrays, name="x", op=rabit.Sum)
            with pytest.raises(rabit.TimedOut, match=r"'x\.0' on rank 0 has not finished"):
                group.result(timeout=0.05)
        rabit.barrier(name="late")
        if engine.rank == 1:
            group = rabit.grouped_allreduce_async_(arrays, name="x", op=rabit.Sum)
        assert len(group.result(timeout=30)) == 3

    run_ranks(2, on_rank)


def test_a_call_that_comes_again_waits_on_when_the_native_wait_is_over(monkeypatch):
    monkeypatch.setattr(repeats, "SLICE_MS", 0)

    def on_rank(engine):
        array = np.ones(4, np.float32)
        for _ in range(20):
            array[:] = 1.0
            rabit.allreduce_(array, name="x", op=rabit.Sum)
            assert array.tolist() == [2.0] * 4

    run_ranks(2, on_rank)
