"""The examples run, and say how they are used.

Those of torch by a RankServer, which has imported it; those of NumPy as a user starts them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.fsdp2 import needs_fsdp2
from support.rank_server import RankServer

EXAMPLES = Path(__file__).parents[2] / "examples"
RABITRUN = ["-m", "rabit.launch", "-np", "2"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2"]
RUNS = {
    "numpy_own_method.py": (RABITRUN, ["--steps", "100"], "a step: test accuracy 0.9"),
    "numpy_svm.py": (RABITRUN, ["--steps", "50"], "test accuracy 0."),
    "torch_synthetic_benchmark.py": (
        RABITRUN,
        ["--batches", "1", "--measurements", "1", "--compression", "bf16"],
        "images/s",
    ),
    "torch_resnet.py": (
        RABITRUN,
        ["--epochs", "2", "--images", "800", "--blocks", "1", "--width", "8"],
        "test accuracy",
    ),
    "torch_finetune.py": (RABITRUN, ["--steps", "60", "--pretraining", "20"], "accuracy"),
    "torch_gan_two_optimizers.py": (RABITRUN, ["--steps", "8"], "mean radius"),
    "torch_elastic.py": (
        ["-m", "rabit.launch", "-np", "3", "--min-np", "1"],
        ["--steps", "30", "--lose", "10:1", "--lose", "20:0"],
        "step 30, 1 ranks",
    ),
    # With two ranks at least the loss is made up for by the spare, however late it comes.
    "numpy_elastic.py": (
        ["-m", "rabit.launch", "-np", "2", "--min-np", "2", "--spares", "1"],
        ["--lose", "3:1", "--lose", "30:0"],
        "step 60, 2 ranks, loss 0.0000",
    ),
    "torch_ddp_backend.py": (TORCHRUN, ["--steps", "8", "--sharded"], "steps/s on rabit"),
}


SWITCHED = ["torch_resnet.py", "torch_finetune.py", "torch_resume.py"]


def python_for(name: str, rank_server: RankServer) -> list[str]:
    return rank_server.command if name.startswith("torch_") else [sys.executable]


def start(command: list[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def run(command: list[str], folder: Path | None = None) -> str:
    done = start(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=needs_fsdp2) if "--sharded" in RUNS[each][1] else each for each in RUNS],
)
def test_example_runs_on_two_ranks(rank_server, name):
    launcher, arguments, expected = RUNS[name]
    program = [*python_for(name, rank_server), str(EXAMPLES / name), *arguments]

    assert expected in run([sys.executable, *launcher, *program])


@pytest.mark.parametrize("name", RUNS)
def test_example_explains_itself(rank_server, name):
    assert "usage:" in run([*python_for(name, rank_server), str(EXAMPLES / name), "--help"])


@pytest.fixture
def resume(rank_server) -> Callable[..., list[str]]:
    """The command that trains four epochs, and continues where a job before has ended; flags are rabitrun's."""

    def command(*arguments: str, flags: Sequence[str] = ()) -> list[str]:
        program = [*rank_server.command, str(EXAMPLES / "torch_resume.py"), "--epochs", "4"]
        return [sys.executable, *RABITRUN, *flags, *program, *arguments]

    return command


def test_a_job_goes_on_where_a_crash_ended_another(resume, tmp_path):
    crashed = start(resume("--crash-after", "2"), tmp_path)
    resumed = run(resume(), tmp_path)
    whole = run(resume("--checkpoint", "other"), tmp_path)

    assert crashed.returncode == 137
    assert "rank 1 of 2" in crashed.stderr
    assert "going on after epoch 2" in resumed
    assert "parameters" in whole.splitlines()[-1]
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]


def test_rabitrun_starts_a_crashed_job_again(resume, tmp_path):
    flags = ["--max-restarts", "2", "--checkpoint", "here"]
    restarted = start(resume("--crash-after", "3", flags=flags), tmp_path)
    whole = run(resume(), tmp_path)

    assert restarted.returncode == 0, restarted.stderr
    assert "rabitrun: starting the job again (1 of 2)" in restarted.stderr
    assert "going on after epoch 3" in restarted.stdout
    assert restarted.stdout.splitlines()[-1] == whole.splitlines()[-1]


@pytest.mark.parametrize("name", SWITCHED)
def test_what_makes_an_example_distributed_is_three_lines(name):
    lines = (EXAMPLES / name).read_text().splitlines()

    assert sum(line.endswith("  # +") for line in lines) == 3
    assert len(lines) <= 120
