"""The examples run, and say how they are used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RABITRUN = ["-m", "rabit.launch", "-np", "2", sys.executable]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
RUNS = {
    "numpy_own_method.py": (RABITRUN, ["--steps", "100"], "a step: test accuracy 0.9"),
    "numpy_svm.py": (RABITRUN, ["--steps", "50"], "test accuracy 0."),
    "torch_synthetic_benchmark.py": (
        RABITRUN,
        ["--batches", "1", "--measurements", "1", "--compression", "bf16"],
        "images/s",
    ),
    "torch_gan_two_optimizers.py": (RABITRUN, ["--steps", "8"], "mean radius"),
    "torch_ddp_backend.py": (TORCHRUN, ["--steps", "8", "--sharded"], "steps/s on rabit"),
}


def run(command: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", RUNS)
def test_example_runs_on_two_ranks(name):
    launcher, arguments, expected = RUNS[name]

    assert expected in run([*launcher, str(EXAMPLES / name), *arguments])


@pytest.mark.parametrize("name", RUNS)
def test_example_explains_itself(name):
    assert "usage:" in run([str(EXAMPLES / name), "--help"])
