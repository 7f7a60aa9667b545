"""Jobs of Slurm: ranks of srun, rabitrun over srun, and a job that is requeued; on two nodes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from support import slurm_lab

from rabit.errors import InvalidArgument
from rabit.launch.submit import _parser, batch_script
from rabit.ops.time_limit import end_time, remaining_seconds

pytestmark = pytest.mark.timeout(400)
RABITRUN = [sys.executable, "-m", "rabit.launch", "--launcher", "srun"]


@pytest.fixture(scope="module")
def lab():
    if reason := slurm_lab.missing():
        pytest.skip(reason)
    with slurm_lab.slurm_lab() as environ:
        # The names of its nodes are known to Slurm alone.
        more = {"RABIT_NETWORK_INTERFACES": "lo", "RABIT_BIND_ADDRESS": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        yield {**environ, **more, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def run(lab, folder, *command):
    return subprocess.run(
        command, env=lab, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


SUM = """
import os, numpy as np, rabit
rabit.init()
print(rabit.rank(), rabit.size(), os.environ["SLURMD_NODENAME"], rabit.allreduce(np.ones(1), name="x", op=rabit.Sum))
"""


@pytest.mark.parametrize("flags", [["--mpi=pmi2"], []], ids=["PMI", "home"])
def test_ranks_of_srun_on_two_nodes_meet_without_a_file(lab, tmp_path, flags):
    done = run(lab, tmp_path, "srun", "-N2", "-n2", *flags, sys.executable, "-c", SUM)

    assert sorted(done.stdout.splitlines()) == ["0 2 n1 [2.]", "1 2 n2 [2.]"], done.stderr


def test_rabitrun_starts_ranks_on_the_nodes_of_the_job_without_ssh(lab, tmp_path):
    done = run(lab, tmp_path, "salloc", "-Q", "-N2", "--ntasks-per-node=2", *RABITRUN, sys.executable, "-c", SUM)

    assert sorted(done.stdout.splitlines()) == [
        "[n1:0] 0 4 n1 [4.]", "[n1:1] 1 4 n1 [4.]", "[n2:2] 2 4 n2 [4.]", "[n2:3] 3 4 n2 [4.]",
    ], done.stderr  # fmt: skip


def test_the_first_cause_and_its_status_are_those_of_the_job(lab, tmp_path):
    code = SUM + "import sys\nif rabit.rank() == 1: sys.exit(3)\nrabit.allreduce(np.ones(1), name='y')"

    done = run(lab, tmp_path, "salloc", "-Q", "-N2", "--ntasks-per-node=1", *RABITRUN, sys.executable, "-c", code)

    assert done.returncode == 3, done.stderr
    assert "rank 1 of 2 (host n2) exited with status 3" in done.stderr


LIFE = """
import json, os, sys, time
from pathlib import Path
import numpy as np, rabit
rabit.init()
saved = Path("state.json")
step, weight = json.loads(saved.read_text()) if saved.exists() else (0, 10.0)
while step < 8:
    gradient = rabit.allreduce(np.array([weight * (rabit.rank() + 1)]), name="gradient")
    weight -= 0.1 * float(gradient[0])
    step += 1
    if rabit.rank() == 0:
        print("loss", step, repr(weight), flush=True)
    if step == 4 and not saved.exists():
        Path("waiting").touch()
        while not rabit.should_stop():
            time.sleep(0.05)
        if rabit.rank() == 0:
            saved.write_text(json.dumps([step, weight]))
        sys.exit(75)
if rabit.rank() == 0:
    Path("done").touch()
"""


def await_file(path, log):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "the job has not begun"
        time.sleep(0.1)


def test_a_job_that_is_asked_to_stop_saves_is_requeued_and_goes_on(lab, tmp_path):
    """The losses are those of a job that was not stopped."""
    (tmp_path / "train.py").write_text(LIFE)
    log = tmp_path / "log"
    words = ["-N", "2", "-t", "5", f"--sbatch=--output={log}", "-o", "job.sh", "--", sys.executable, "train.py"]
    written = run(lab, tmp_path, sys.executable, "-m", "rabit.launch", "submit", *words)
    assert written.returncode == 0, written.stderr
    assert run(lab, tmp_path, "sbatch", "--test-only", "job.sh").returncode == 0

    job = run(lab, tmp_path, "sbatch", "--parsable", "job.sh").stdout.strip()
    await_file(tmp_path / "waiting", log)
    run(lab, tmp_path, "scancel", "--batch", "--signal=USR1", job)
    await_file(tmp_path / "state.json", log)
    deadline = time.monotonic() + 240
    while not (tmp_path / "done").exists() and time.monotonic() < deadline:
        # Slurm lets a requeued job wait for two minutes, unless it is told otherwise.
        run(lab, tmp_path, "scontrol", "update", f"JobId={job}", "StartTime=now")
        time.sleep(2)

    weight, wanted = 10.0, []
    for step in range(1, 9):
        weight -= 0.1 * (weight * 1.5)
        wanted.append(f"loss {step} {weight!r}")
    losses = [line.partition("] ")[2] for line in log.read_text().splitlines() if "loss" in line]
    assert losses == wanted, log.read_text()


def test_the_time_that_is_left():
    assert remaining_seconds("1-02:03:04") == 93784
    assert remaining_seconds("2:03:04") == 7384
    assert remaining_seconds("3:04") == 184
    assert remaining_seconds("UNLIMITED") == float("inf")
    assert remaining_seconds("INVALID") == 0
    assert remaining_seconds("soon") is None
    assert end_time({"SLURM_JOB_END_TIME": "1700000000"}) == 1_700_000_000


def test_without_a_scheduler_there_is_no_limit_to_stop_before():
    with pytest.raises(InvalidArgument, match="this is not a job of Slurm"):
        end_time({})


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-N", "0", "x"], "--nodes is 0"),
        (["-t", "soon", "x"], "--time is 'soon'"),
        ([], "there is no command"),
    ],
)
def test_a_script_that_slurm_would_refuse_is_not_written(words, text):
    with pytest.raises(InvalidArgument, match=text):
        batch_script(_parser().parse_args(words))


def test_rabitrun_over_srun_needs_a_job(tmp_path):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    done = run(environ, tmp_path, *RABITRUN, "-np", "1", "true")

    assert done.returncode == 2
    assert "SLURM_JOB_ID is not set" in done.stderr
