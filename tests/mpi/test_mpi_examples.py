"""The examples of both frameworks, with any number of ranks, under either backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# The framework, what to pass to be quick, and what is printed at the end.
RUNS = {
    "torch_char_lm.py": ("torch", ["--steps", "60"], "bits per byte on text"),
    "mxnet_digits.py": ("mxnet", [], "test accuracy"),
}

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(120)]


def is_installed(framework: str) -> bool:
    found = importlib.util.find_spec(framework)
    return found is not None and found.origin is not None  # A folder of tests has no origin.


@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
@pytest.mark.parametrize("backend", ["builtin", "mpi"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", RUNS)
def test_example_runs_under_mpiexec(mpi, name, size, backend):
    framework, arguments, expected = RUNS[name]
    if not is_installed(framework):
        pytest.skip(f"{framework} is not installed")

    ended = mpi.run(size, EXAMPLES / name, *arguments, environ={"RABIT_BACKEND": backend})

    ended.assert_ended_well()
    assert expected in ended.output, ended.output
