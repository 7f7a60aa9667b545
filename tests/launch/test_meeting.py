"""rabit.Meeting: ranks that somebody else has started, four engines and three failures each."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import types
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import rabit
from rabit.errors import InvalidArgument

# Workers of other processes have not this folder in their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SIZE = 3
FAILURES = ("raises", "is killed", "ends early")
pytestmark = pytest.mark.timeout(120)


def train(failure: str) -> float:
    """The program of a rank: rank 1 fails, after all have met."""
    rank = rabit.rank()
    total = rabit.allreduce(np.full(4, float(rank)), name="x", op=rabit.Sum)
    assert "_RABIT_SECRET" not in os.environ
    if rank == 1 and failure == "raises":
        raise ValueError("bad data")
    if rank == 1 and failure == "is killed":
        os.kill(os.getpid(), 9)
    if failure and not (rank == 1 and failure == "ends early"):
        rabit.allreduce(total, name="y")
    return float(total[0])


SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import rabit
from test_meeting import train
rabit.init()
train(sys.argv[1])
"""


def by_subprocess(meeting, failure):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, failure],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                **meeting.environment(rank),
            },
            stderr=subprocess.DEVNULL,
        )
        for rank in range(SIZE)
    ]
    for rank, process in enumerate(processes):
        meeting.ended(rank, process.wait(60))


def by_multiprocessing(meeting, failure):
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=meeting.as_rank(rank, train), args=(failure,)) for rank in range(SIZE)
    ]
    for process in processes:
        process.start()
    for rank, process in enumerate(processes):
        process.join(60)
        meeting.ended(rank, process.exitcode)


def by_futures(meeting, failure):
    with ProcessPoolExecutor(SIZE, multiprocessing.get_context("fork")) as pool:
        futures = [pool.submit(meeting.as_rank(rank, train), failure) for rank in range(SIZE)]
        assert [future.result(60) for future in futures] == [3.0] * SIZE


def by_dask(meeting, failure):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=SIZE, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = list(client.scheduler_info()["workers"])
        futures = [
            client.submit(
                meeting.as_rank(rank, train), failure,
                workers=[worker], allow_other_workers=False, pure=False, retries=0,
            )
            for rank, worker in enumerate(workers)
        ]  # fmt: skip
        assert client.gather(futures) == [3.0] * SIZE


def by_submitit(meeting, failure, folder):
    submitit = pytest.importorskip("submitit")
    executor = submitit.LocalExecutor(folder=folder)
    executor.update_parameters(timeout_min=1)
    jobs = [executor.submit(meeting.as_rank(rank, train), failure) for rank in range(SIZE)]
    assert [job.result() for job in jobs] == [3.0] * SIZE


ENGINES = {
    "subprocess": by_subprocess,
    "multiprocessing": by_multiprocessing,
    "concurrent.futures": by_futures,
    "dask": by_dask,
    "submitit": by_submitit,
}


def run(engine, failure, tmp_path, **where):
    with rabit.Meeting(SIZE, **where) as meeting:
        more = (tmp_path,) if engine == "submitit" else ()
        ENGINES[engine](meeting, failure, *more)


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_meet_in_processes_of(engine, tmp_path):
    run(engine, "", tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_is_reported_from(engine, tmp_path):
    with pytest.raises(rabit.RunFailed) as caught:
        run(engine, "raises", tmp_path)

    text = str(caught.value)
    assert text.startswith("rabit.Meeting: rank 1 of 3 (host localhost) raised ValueError: bad data")
    assert 'raise ValueError("bad data")' in text
    assert (caught.value.rank, caught.value.status) == (1, 1)


@pytest.mark.parametrize("engine", ["subprocess", "multiprocessing"])
def test_a_killed_rank_is_named_with_its_signal(engine, tmp_path):
    with pytest.raises(rabit.RunFailed, match=r"rank 1 of 3 .* was killed by SIGKILL") as caught:
        run(engine, "is killed", tmp_path)

    assert (caught.value.rank, caught.value.status) == (1, 137)


@pytest.mark.parametrize("engine", ["concurrent.futures", "dask", "submitit"])
def test_a_killed_rank_is_no_hang_in(engine, tmp_path):
    """Its engine says that a worker is gone; who missed it, which one."""
    with pytest.raises(Exception) as caught:
        run(engine, "is killed", tmp_path)

    if isinstance(caught.value, rabit.RunFailed):
        assert "rank 1 of 3 (host localhost) was lost and reported no error" in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_ends_early_is_the_cause_in(engine, tmp_path):
    with pytest.raises(rabit.RunFailed) as caught:
        run(engine, "ends early", tmp_path)

    assert "rank 1" in str(caught.value).splitlines()[0]


def test_ranks_of_named_hosts_meet_by_value(tmp_path):
    run("subprocess", "", tmp_path, hosts=["a", "b", "a"])


def test_places_follow_the_hosts():
    with rabit.Meeting(4, hosts=["a", "b", "a", "c"], address="127.0.0.1") as meeting:
        found = [meeting.environment(rank) for rank in range(4)]

    names = ("RABIT_LOCAL_RANK", "RABIT_LOCAL_SIZE", "RABIT_CROSS_RANK", "RABIT_CROSS_SIZE")
    assert [[int(each[name]) for name in names] for each in found] == [
        [0, 2, 0, 3], [0, 1, 1, 3], [1, 2, 0, 1], [0, 1, 2, 3],
    ]  # fmt: skip


def test_the_secret_is_in_a_private_file_and_nowhere_else():
    with rabit.Meeting(2) as meeting:
        found = meeting.environment(0)
        path = Path(found["RABIT_SECRET_FILE"])
        secret = path.read_text().strip()

        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert not any(secret in value for value in found.values())
        assert secret not in repr(meeting.as_rank(0, train))
    assert not path.exists()


def test_a_secret_by_value_leaves_the_environment_and_is_inherited_by_no_program(tmp_path):
    code = (
        "import os, subprocess, rabit; rabit.init(); assert '_RABIT_SECRET' not in os.environ;"
        "assert b'_RABIT_SECRET' not in subprocess.run(['env'], capture_output=True).stdout;"
        "rabit.shutdown(); rabit.init()"
    )
    with rabit.Meeting(2, hosts=["a", "a"], address="127.0.0.1") as meeting:
        processes = [
            subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **meeting.environment(r)})
            for r in range(2)
        ]
        for rank, process in enumerate(processes):
            meeting.ended(rank, process.wait(60))


def test_a_worker_serves_a_second_meeting():
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for size in (2, 2, 1):
            with rabit.Meeting(size) as meeting:
                calls = [meeting.as_rank(rank, rabit.size) for rank in range(size)]
                assert [future.result(60) for future in [pool.submit(call) for call in calls]] == [size] * size


@pytest.mark.parametrize("engine", ["dask", "submitit"])
def test_a_function_that_the_workers_cannot_load_is_the_cause_in(engine, tmp_path, monkeypatch):
    """Dask alone lets such a task wait forever."""
    module = types.ModuleType("known_here_alone")
    exec("def train(failure): return 3.0", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(globals(), "train", module.train)

    with pytest.raises(rabit.RunFailed, match="raised ModuleNotFoundError: No module named 'known_here_alone'"):
        run(engine, "", tmp_path)


def test_the_program_of_the_guide_runs(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "howto" / "meeting.md"
    program = page.read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / "in_a_pool.py").write_text(program)

    done = subprocess.run(
        [sys.executable, "in_a_pool.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout == "[6.0, 6.0, 6.0]\n"


def test_an_error_of_the_driver_passes():
    with pytest.raises(ZeroDivisionError), rabit.Meeting(2):
        _ = 1 // 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: rabit.Meeting(0), "size is 0"),
        (lambda: rabit.Meeting(2, hosts=["a"]), "hosts has 1 names, and size is 2"),
        (lambda: rabit.Meeting(2).environment(0), "the meeting is not open"),
        (lambda: rabit.Meeting(2).ended(2, 0), "rank 2 is not between 0 and 1"),
    ],
)
def test_what_cannot_be_is_refused(call, text):
    with pytest.raises(InvalidArgument, match=text):
        call()
