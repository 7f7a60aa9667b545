"""Ranks as real processes on loopback."""

from __future__ import annotations

import pytest
from support.late_ranks import without_waits
from support.processes import assert_all_ended_well, run_processes

COLLECTIVES = """
import numpy as np
import rabit

rabit.init()
rank, size = rabit.rank(), rabit.size()
assert rabit.is_initialized() and rabit.is_homogeneous()
assert (rabit.local_rank(), rabit.local_size()) == (rank, size)
assert (rabit.cross_rank(), rabit.cross_size()) == (0, 1)
for count in (0, 1, size - 1, size, size + 1, 1000, 1_000_003):
    mine = np.arange(count, dtype=np.float64) + rank
    found = rabit.allreduce(mine, name=f"n{count}", op=rabit.Sum)
    np.testing.assert_array_equal(found, size * np.arange(count) + size * (size - 1) / 2)
assert rabit.allgather(np.full(rank, rank), name="g").tolist() == [
    peer for peer in range(size) for _ in range(peer)
]
assert rabit.broadcast_object({"rank": rank}, size - 1) == {"rank": size - 1}
assert rabit.alltoall(np.full(size, rank)).tolist() == list(range(size))
rabit.barrier()
rabit.shutdown()
assert not rabit.is_initialized()
print("done", rank)
"""


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_collectives(size, transport, tmp_path):
    ended = run_processes(size, COLLECTIVES, tmp_path, {"RABIT_TRANSPORT": transport})

    assert_all_ended_well(ended)
    assert [each.output for each in ended] == [f"done {rank}\n" for rank in range(size)]


def test_init_and_shutdown_fifty_times(tmp_path):
    script = """
import os
import rabit

for round in range(50):
    rabit.init()
    rabit.init()  # does nothing
    assert rabit.allreduce(round + rabit.rank(), name="x", op=rabit.Sum) == 2 * round + 1
    rabit.shutdown()
    rabit.shutdown()  # does nothing
    if round == 4:
        before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
assert len(os.listdir("/proc/self/fd")) <= before[0] + 1, (before, os.listdir("/proc/self/fd"))
assert len(os.listdir("/proc/self/task")) <= before[1], before
"""
    assert_all_ended_well(run_processes(2, script, tmp_path))


def test_shutdown_says_a_failure_that_the_program_has_handled_and_init_may_follow(tmp_path):
    script = """
import time

import rabit

rabit.init()
try:
    rabit.allreduce(1.0, name=f"x{rabit.rank()}")
except rabit.TimedOut as error:
    assert "no progress for 1 s" in str(error), error
rabit.shutdown()
rabit.init()
assert rabit.allreduce(1.0, name="x", op=rabit.Sum) == 2.0
handle = rabit.allreduce_async(1.0, name=f"x{rabit.rank()}")
while not handle.done():
    time.sleep(0.01)
try:  # Nobody has told the program of this one.
    rabit.shutdown()
except rabit.TimedOut as error:
    assert "no progress for 1 s" in str(error), error
else:
    raise AssertionError("shutdown() hides a failure")
"""
    ended = run_processes(2, script, tmp_path, {"RABIT_STALL_ABORT": "1s"})

    assert_all_ended_well(ended)
    assert all("rabit: at shutdown: no progress for 1 s" in each.errors for each in ended)


def test_process_sets_survive_a_new_engine(tmp_path):
    script = """
import rabit

low = rabit.ProcessSet([0])
for _ in range(2):
    rabit.init(process_sets=[low])
    assert low.process_set_id is not None and low.size() == 1
    if low.included():
        assert rabit.allgather([5], process_set=low).tolist() == [5]
    rabit.shutdown()
    assert low.process_set_id is None
"""
    assert_all_ended_well(run_processes(2, script, tmp_path))


def test_a_forked_child_gets_a_clear_error_and_harms_nobody(tmp_path):
    script = """
import os
import rabit

rabit.init()
place = rabit.rank(), rabit.size()
child = os.fork()
if child == 0:
    assert (rabit.rank(), rabit.size()) == place == (rabit.global_process_set.rank(), rabit.global_process_set.size())
    assert (rabit.local_rank(), rabit.cross_size()) == (place[0], 1)
    for call in (rabit.init, rabit.barrier, lambda: rabit.allreduce(1.0, name="x")):
        try:
            call()
        except rabit.InvalidArgument as error:
            assert "forked" in str(error) and "'spawn'" in str(error), error
        else:
            os._exit(7)
    assert not rabit.is_initialized()
    rabit.shutdown()
    raise SystemExit(0)  # runs the exit handlers of the child
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert rabit.allreduce(1.0, name="x", op=rabit.Sum) == 2.0
"""
    assert_all_ended_well(run_processes(2, script, tmp_path))


def test_a_child_that_is_forked_before_init_may_be_a_rank(tmp_path):
    script = """
import os
import rabit

child = os.fork()
if child == 0:
    rabit.init()
    assert rabit.allreduce(1.0, name="x", op=rabit.Sum) == 2.0
    rabit.shutdown()
    raise SystemExit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert_all_ended_well(run_processes(2, script, tmp_path))


def test_an_exception_on_one_rank_reaches_the_other_at_once(tmp_path):
    script = """
import sys
import rabit

rabit.init()
if rabit.rank() == 1:
    raise KeyError("boom")
try:
    rabit.allreduce(1.0, name="x")
except rabit.RabitError as error:
    assert error.rank == 1, (type(error), error)
    print(type(error).__name__)
    sys.exit(0)
"""
    good, bad = run_processes(2, script, tmp_path)

    assert bad.status == 1
    assert "KeyError: 'boom'" in bad.errors
    assert good.status == 0, good.errors
    assert good.output in ("PeerLost\n", "Aborted\n")  # lost, or gone in good order


def test_exit_without_shutdown_is_clean(tmp_path):
    script = """
import rabit

rabit.init()
rabit.allreduce(1.0, name="x")
"""
    ended = run_processes(2, script, tmp_path)

    assert_all_ended_well(ended)
    assert [without_waits(each.errors) for each in ended] == ["", ""]


def test_the_summary_comes_from_rank_0(tmp_path):
    script = "import rabit\nrabit.init()\nrabit.allreduce([1.0] * 1000, name='x')\n"
    ended = run_processes(2, script, tmp_path, {"RABIT_SUMMARY": "1"})

    assert_all_ended_well(ended)
    assert "rabit: 1 tensor and 7.81 KiB in all, 2 ranks" in ended[0].errors
    assert "hidden behind compute" in ended[0].errors
    assert without_waits(ended[1].errors) == ""


def test_ctrl_c_ends_a_wait(tmp_path):
    script = """
import os
import signal
import threading
import rabit

rabit.init()
if rabit.rank() == 0:
    handle = rabit.allreduce_async(1.0, name="only here")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        handle.wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        os._exit(0)
else:
    try:
        rabit.allreduce(1.0, name="only there")
    except rabit.PeerLost as error:
        assert error.rank == 0
"""
    first, second = run_processes(2, script, tmp_path)

    assert (first.status, first.output) == (0, "interrupted\n"), first.errors
    assert second.status == 0, second.errors
