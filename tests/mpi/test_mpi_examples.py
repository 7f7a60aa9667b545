"""The examples of both frameworks, with any number of ranks, under either backend and launcher."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from support.mpi import PURE_MPI

EXAMPLES = Path(__file__).parents[2] / "examples"
# The framework, what to pass to be quick, and what is printed at the end.
RUNS = {
    "torch_char_lm.py": ("torch", ["--steps", "20"], "bits per byte on text"),
    "mxnet_digits.py": ("mxnet", [], "test accuracy"),
}

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(400)]


def is_installed(framework: str) -> bool:
    found = importlib.util.find_spec(framework)
    return found is not None and found.origin is not None  # A folder of tests has no origin.


def python_for(framework: str, request: pytest.FixtureRequest) -> list[str]:
    return request.getfixturevalue("rank_server").command if framework == "torch" else [sys.executable]


@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
@pytest.mark.parametrize("backend", ["builtin", "mpi"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", RUNS)
def test_example_runs_under_mpiexec(mpi, request, name, size, backend):
    framework, arguments, expected = RUNS[name]
    if not is_installed(framework):
        pytest.skip(f"{framework} is not installed")

    environ = {"RABIT_BACKEND": backend, **PURE_MPI}
    ended = mpi.run(
        size, EXAMPLES / name, *arguments, environ=environ, python=python_for(framework, request)
    )

    ended.assert_ended_well()
    assert expected in ended.output, ended.output


@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
@pytest.mark.parametrize("backend", ["builtin", "mpi"])
@pytest.mark.parametrize("name", RUNS)
def test_example_runs_under_rabitrun_with_the_launcher_of_mpi(mpi, request, name, backend):
    framework, arguments, expected = RUNS[name]
    if not is_installed(framework):
        pytest.skip(f"{framework} is not installed")
    launch = ["-m", "rabit.launch", "--launcher", "mpi", "-np", "2", "--backend", backend]

    done = subprocess.run(
        [sys.executable, *launch, *python_for(framework, request), EXAMPLES / name, *arguments],
        env=mpi.environ({}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert expected in done.stdout, done.stdout
