"""Engine, Handle and Batch on a job of one."""

from __future__ import annotations

import gc
import json
import os
import threading

import numpy as np
import pytest

import rabit
from rabit import Config, Engine, InvalidArgument, Kind, NotInitialized, PeerLost, Request
from rabit._native import check, ffi
from rabit.engine.tensor import view_input, view_output
from rabit.testing import run_ranks


@pytest.fixture
def engine():
    with Engine(Config()) as engine:
        yield engine


def request(name, array):
    view = view_output(array)
    return Request(Kind.ALLREDUCE, name, view, view)


def test_a_job_of_one_needs_nothing(engine):
    assert (engine.rank, engine.size, engine.local_size, engine.cross_size) == (0, 1, 1, 1)
    assert repr(engine) == "<rabit.Engine rank 0 of 1, open>"


def test_engines_do_not_know_each_other(engine):
    with Engine(Config()) as other:
        first = engine.submit([request("x", np.ones(3))])
        second = other.submit([request("x", np.ones(3))])
        first[0].wait()
        second[0].wait()


def test_a_batch_is_submitted_again_and_again(engine):
    arrays = [np.full(4, float(index)) for index in range(5)]
    batch = engine.prepare([request(f"t{index}", each) for index, each in enumerate(arrays)])

    for indices in (None, [3], [0, 2, 4], range(1, 4), [4, 1]):
        handles = batch.submit(indices)
        assert [each.name for each in handles] == [f"t{i}" for i in (indices or range(5))]
        for each in handles:
            each.wait(10)

    assert len(batch) == 5
    assert [each[0] for each in arrays] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_batch_moves_to_other_memory(engine):
    source, target = np.arange(4.0), np.zeros(4)
    batch = engine.prepare([request("x", np.zeros(4))])
    batch.set_pointers(0, source.ctypes.data, target.ctypes.data)
    (handle,) = batch.submit(keepalive=[(source, target)])
    handle.wait(10)

    assert target.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_batch_is_all_or_nothing(engine):
    batch = engine.prepare([request("a", np.ones(3)), request("a", np.ones(3))])

    with pytest.raises(InvalidArgument, match="'a'"):
        batch.submit()
    batch.submit([0])[0].wait(10)


def test_a_handle_keeps_its_tensors_until_it_is_done(engine):
    handle = engine.submit([Request(Kind.ALLGATHER, "x", view_input(np.arange(5.0)))])[0]
    gc.collect()
    handle.wait(10)

    assert handle.done()
    assert handle.result().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert repr(handle) == "<rabit.Handle 'x', done>"


def test_a_result_outlives_handle_and_engine():
    with Engine(Config()) as engine:
        found = engine.submit([Request(Kind.ALLGATHER, "x", view_input(np.arange(5)))])[0].result()
    del engine
    gc.collect()

    assert found.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["", "x" * 1025, "a\0b", "é" * 513])
def test_names_have_1_to_1024_bytes(engine, name):
    with pytest.raises(InvalidArgument, match="names have 1 to 1024"):
        engine.submit([request(name, np.ones(1))])


def test_generated_names_count_by_kind(engine):
    assert [engine.auto_name("allreduce") for _ in range(2)] == [
        "allreduce.noname.1",
        "allreduce.noname.2",
    ]
    assert engine.auto_name("barrier") == "barrier.noname.1"


def test_objects_have_one_name_on_all_ranks_after_a_join():
    def on_rank(engine):
        names = [engine.next_name("method")]
        if engine.rank:  # As where the other rank has joined.
            engine.next_name("method")
        rabit.join()
        return [*names, engine.next_name("method"), engine.next_name("method")]

    first, second = run_ranks(2, on_rank)
    assert first == second and len(set(first)) == 3


def test_messages_without_names_keep_their_order_over_a_join():
    """One may be on its way then: both sides count them alike, and miss none."""

    def on_rank(engine):
        sent = rabit.send_async(np.full(2, 1.0), 1) if engine.rank == 0 else None
        if engine.rank == 1:
            assert rabit.recv(np.zeros(2), 0).tolist() == [1, 1]
        rabit.join()
        if sent is not None:
            sent.wait()
            rabit.send(np.full(2, 2.0), 1)
        else:
            assert rabit.recv(np.zeros(2), 0).tolist() == [2, 2]

    run_ranks(2, on_rank)


def test_use_after_close(engine):
    engine.close()
    engine.close()

    with pytest.raises(NotInitialized, match="has been shut down"):
        engine.submit([request("x", np.ones(1))])
    assert repr(engine) == "<rabit.Engine rank 0 of 1, closed>"
    assert engine.statistics()["size"] == 1


def test_unknown_codec_backend_and_group(engine):
    with pytest.raises(InvalidArgument, match="fp17"):
        engine.codec_id(rabit.CompressionCodec("fp17"))
    with pytest.raises(InvalidArgument, match=r"expected one of rabit.Compression"):
        engine.codec_id("fp16")
    with pytest.raises(rabit.RabitError, match="pigeon"):
        engine.backend("pigeon")
    with pytest.raises(InvalidArgument, match="group 9 does not exist"):
        engine.members(9)
    for ranks in ([], [1], [0, 0], [-1]):
        with pytest.raises(InvalidArgument, match="cannot be made in a job of 1"):
            engine.add_group(ranks)


def test_unknown_option_names_the_nearest(engine):
    library = engine._native.library

    with pytest.raises(InvalidArgument, match="did you mean 'lanes'"):
        check(library, library.rabit_start(b"lames=2\n", ffi.new("rabit_engine**")))


@pytest.mark.parametrize(("setting", "used"), [({}, 1), ({"lanes": 2}, 2), ({"lanes": 3}, 3)])
def test_ranks_that_share_cores_use_one_lane_unless_told_otherwise(setting, used):
    size = (os.cpu_count() or 1) + 1
    if size > 9:
        pytest.skip(f"{size} ranks are needed to share {size - 1} cores")

    lanes = run_ranks(size, lambda engine: engine.statistics()["tunables"]["lanes"], **setting)

    assert lanes == [used] * size


def test_statistics_show_the_lanes_of_each_backend(engine):
    engine.submit([request("x", np.ones(3))])[0].wait(10)

    classes = engine.statistics()["lane_classes"]

    assert list(classes) == ["builtin"]
    assert classes["builtin"]["issued"] == 1
    assert classes["builtin"]["queued"] == 0
    assert classes["builtin"]["lanes"] == engine.statistics()["tunables"]["lanes"]


def test_the_timeline_is_chrome_json(engine, tmp_path):
    path = tmp_path / "trace.json"
    engine.start_timeline(str(path), mark_cycles=True)
    engine.submit([request("x", np.ones(3))])[0].wait(10)
    engine.stop_timeline()
    events = json.loads(path.read_text())

    events = events["traceEvents"] if isinstance(events, dict) else events
    assert any(event.get("ph") in ("X", "B") for event in events)


def test_statistics_count(engine):
    for index in range(3):
        engine.submit([request("x", np.ones(256, np.float32))])[0].wait(10)
        engine.steps += 1
        assert index + 1 == engine.steps
    found = engine.statistics()

    assert found["totals"]["tensors"] == 3
    assert found["totals"]["bytes"] == 3 * 1024
    assert found["steps"] == 3


def test_many_threads_submit(engine):
    errors = []

    def work(number):
        try:
            for step in range(50):
                array = np.full(10, float(step))
                engine.submit([request(f"{number}.{step}", array)])[0].wait(20)
                assert array.tolist() == [float(step)] * 10
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert not errors


def test_an_exception_inside_the_block_of_an_engine_is_what_the_other_ranks_hear():
    def on_rank(engine):
        if engine.rank == 0:
            engine.submit([request("x", np.ones(4))])[0].wait()
        with pytest.raises(ValueError, match="no such file"), engine:
            raise ValueError("no such file")

    with pytest.raises(
        PeerLost, match=r"'x'.*rank 1 is ending after ValueError: no such"
    ) as raised:
        run_ranks(2, on_rank)

    assert raised.value.rank == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": 3}, "the name 3 of type int is not text"),
        (
            {"name": "a\udc80b"},
            r"the name 'a\\udc80b' of type str is not text that UTF-8 can encode",
        ),
        (
            {"priority": 1.5},
            "allreduce 'x': root -1 and priority 1.5 are not both integers of 32 bits",
        ),
        ({"priority": 1 << 40}, f"priority {1 << 40} are not both integers"),
        ({"root": "0"}, "root '0' and priority 0 are not both integers"),
    ],
)
def test_a_request_of_what_is_no_text_or_number_is_refused(engine, changes, text):
    wanted = request("x", np.ones(2))
    for key, value in changes.items():
        setattr(wanted, key, value)

    for call in (
        lambda: engine.submit([wanted]),
        lambda: engine.run(wanted),
        lambda: engine.prepare([wanted]),
    ):
        with pytest.raises(InvalidArgument, match=text):
            call()


@pytest.mark.parametrize("timeout", ["x", float("nan"), [1]])
def test_a_time_to_wait_is_a_number(engine, timeout):
    (handle,) = engine.submit([request("x", np.ones(2))])

    with pytest.raises(
        InvalidArgument, match=r"wait for 'x': timeout is .*; pass a number of seconds"
    ):
        handle.wait(timeout)
    handle.wait(float("inf"))


@pytest.mark.parametrize("given", [3, None, "x"])
def test_what_is_no_handle_is_refused(given):
    for call in (rabit.synchronize, rabit.poll):
        with pytest.raises(
            InvalidArgument, match=rf"{call.__name__}: {given!r} of type .* is no handle"
        ):
            call(given)
