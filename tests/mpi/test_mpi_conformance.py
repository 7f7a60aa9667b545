"""One set of checks for every backend, on real ranks that mpiexec has started (MCR-DL-A 1)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.mpi import PURE_MPI

JOB = Path(__file__).parent / "conformance_job.py"

pytestmark = [pytest.mark.mpi, pytest.mark.slow]


def check(mpi, size, backend, environ, *arguments):
    ended = mpi.run(size, JOB, backend, *arguments, environ=environ)

    ended.assert_ended_well()
    # mpiexec may join the lines of several ranks.
    checked = [int(each) for each in re.findall(r"checked (\d+)", ended.output)]
    assert len(checked) == size and min(checked) > 200, ended.output


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("backend", ["builtin", "mpi"])
def test_every_collective_type_and_size(mpi, backend, size):
    check(mpi, size, backend, {"RABIT_BACKEND": "builtin,mpi", **PURE_MPI})


@pytest.mark.parametrize("size", [1, 3])
def test_through_shared_memory_on_one_host(mpi, size):
    check(mpi, size, "mpi", {"RABIT_BACKEND": "mpi"})


@pytest.mark.parametrize(("size", "ranks_per_host"), [(4, 2), (5, 2), (3, 1)])
def test_through_shared_memory_inside_hosts_and_mpi_between(mpi, size, ranks_per_host):
    check(mpi, size, "mpi", {"RABIT_BACKEND": "mpi"}, ranks_per_host)


@pytest.mark.parametrize("collectives", ["library", "messages"])
def test_with_and_without_the_collectives_of_the_library(mpi, collectives):
    check(mpi, 3, "mpi", {"RABIT_BACKEND": "mpi", "RABIT_MPI_COLLECTIVES": collectives})


def test_long_messages_are_cut(mpi):
    """A cut every 1000 bytes stands for the cut at 2^31 that MPI needs."""
    environ = {"RABIT_MPI_COLLECTIVES": "messages", "RABIT_MPI_MESSAGE_BYTES": "1000"}

    check(mpi, 2, "mpi", {"RABIT_BACKEND": "mpi", **environ})


def test_deterministic_sums_are_those_of_the_builtin_backend(mpi, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, rabit\n"
        "rabit.init()\n"
        "x = np.random.default_rng(rabit.rank()).standard_normal(50_001).astype(np.float32)\n"
        "found = [rabit.allreduce(x, name=b, backend=b).tobytes() for b in ('builtin', 'mpi')]\n"
        "assert found[0] == found[1]\n"
        "rabit.shutdown()\n"
    )

    environ = {"RABIT_BACKEND": "builtin,mpi", "RABIT_DETERMINISTIC": "1", **PURE_MPI}
    mpi.run(3, script, environ=environ).assert_ended_well()


def test_an_allgather_to_which_a_rank_brings_nothing_is_made_of_messages(mpi, tmp_path):
    """There are MPI libraries whose own never ends."""
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, rabit\n"
        "rabit.init()\n"
        "mine = np.full((rabit.rank() * 50_000, 2), rabit.rank(), np.int16)\n"
        "rows = rabit.allgather(mine, name='x')[:, 0]\n"
        "assert (rows == np.repeat(np.arange(3), [0, 50_000, 100_000])).all()\n"
        "routes = rabit.default_engine().statistics()['routes']\n"
        "found = {route['backend'] for route in routes if route['kind'] == 'allgather'}\n"
        "print('allgather by', *found, flush=True)\n"
        "rabit.shutdown()\n"
    )

    ended = mpi.run(3, script, environ={"RABIT_BACKEND": "mpi", **PURE_MPI})

    ended.assert_ended_well()
    assert ended.output.count("allgather by mpi.messages\n") == 3, ended.output
