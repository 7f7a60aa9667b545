"""Jobs that are started again, and jobs that leave to be resumed."""

from __future__ import annotations

import signal
import sys

import pytest

COUNTED = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
restart = int(os.environ.get("RABIT_RESTART", "0"))
(folder / f"{restart}.{os.environ['RABIT_RANK']}").touch()
if restart < int(sys.argv[2]) and os.environ["RABIT_RANK"] == "1":
    sys.exit(int(sys.argv[3]))
"""
LEAVES = """
import rabit, sys
from rabit.checkpoint import RESUMABLE
rabit.init()
step = 0
while not rabit.should_stop():
    step += 1
    if step == 3:
        print("ready", flush=True)
print("stops at", rabit.allgather([step], name="steps").tolist(), flush=True)
sys.exit(RESUMABLE)
"""


def counted(rabitrun, tmp_path, *flags, failures, status=3):
    return rabitrun(
        "-np", 2, *flags, sys.executable, "-c", COUNTED, tmp_path, failures, status
    )  # fmt: skip


def test_a_failed_job_is_started_again_until_it_ends_well(rabitrun, tmp_path):
    job = counted(rabitrun, tmp_path, "--max-restarts", 5, failures=2)

    assert job.status == 0
    assert job.err.count("starting the job again") == 2
    assert job.err.count("exited with status 3") == 2
    assert sorted(each.name for each in tmp_path.iterdir())[-1] == "2.1"


def test_a_job_that_fails_too_often_has_the_status_of_the_last_failure(rabitrun, tmp_path):
    job = counted(rabitrun, tmp_path, "--max-restarts", 1, failures=9)

    assert job.status == 3
    assert "starting the job again (1 of 1)" in job.err
    assert job.err.count("starting the job again") == 1


def test_the_output_of_the_attempt_that_failed_stays(rabitrun, tmp_path):
    script = 'echo "attempt ${RABIT_RESTART:-0} of $RABIT_RANK"; [ "$RABIT_RESTART" = 2 ] || exit 3'
    job = rabitrun("-np", 2, "--max-restarts", 2, "--output-filename", tmp_path, "sh", "-c", script)

    assert job.status == 0, job.err
    for rank in range(2):
        for attempt, folder in enumerate((".", "restart.1", "restart.2")):
            text = (tmp_path / folder / f"rank.{rank}" / "stdout").read_text()
            assert text in (f"attempt {attempt} of {rank}\n", "")  # "": it was stopped with the other one
    assert (tmp_path / "rank.0" / "stdout").read_text() or (tmp_path / "rank.1" / "stdout").read_text()


def test_the_logs_of_the_attempt_that_failed_stay(rabitrun, tmp_path):
    script = """
import rabit, sys
rabit.init()
rabit.allreduce([1.0], name="x")
sys.exit(0 if rabit.default_engine().config.restart else 3)
"""
    flags = ("--comm-log", tmp_path / "ops.csv", "--timeline", tmp_path / "t.json")
    job = rabitrun("-np", 2, "--max-restarts", 1, *flags, sys.executable, "-c", script)

    assert job.status == 0, job.err
    names = {each.name for each in tmp_path.iterdir()}
    assert {"ops.0.csv", "ops.1.csv", "ops.restart1.0.csv", "ops.restart1.1.csv"} <= names
    assert {"t.json", "t.restart1.json"} <= names


def test_without_the_flag_nothing_is_started_again(rabitrun, tmp_path):
    job = counted(rabitrun, tmp_path, failures=1)

    assert job.status == 3 and "again" not in job.err


def test_a_job_that_leaves_to_be_resumed_is_no_failure(rabitrun, tmp_path):
    job = counted(rabitrun, tmp_path, "--max-restarts", 3, failures=9, status=75)

    assert job.status == 75
    assert job.err == (
        "rabitrun: the job left before its end, to be started again (status 75).\n"
    )


def test_a_failure_beside_a_rank_that_leaves_is_a_failure(rabitrun):
    script = "import os, sys; sys.exit(75 if os.environ['RABIT_RANK'] == '0' else 4)"

    job = rabitrun("-np", 2, sys.executable, "-c", script)

    assert job.status == 4
    assert "rank 1 of 2" in job.err and "exited with status 4" in job.err


def test_a_signal_to_rabitrun_lets_all_ranks_leave_at_one_step(start):
    job = start("-np", 3, "--grace-time", "60s", "--max-restarts", 2, sys.executable, "-c", LEAVES)
    seen = job.wait_for_line("ready", 3)
    job.send(signal.SIGTERM)

    assert job.wait() == 75
    steps = {line.partition("stops at ")[2] for line in (seen + job.out).splitlines()} - {""}
    assert len(steps) == 1 and len(set(eval(steps.pop()))) == 1
    assert "again (1 of" not in job.err


@pytest.mark.parametrize("flags", [["--max-restarts", "-1"], ["--max-restarts", "1", "--launcher", "mpi"]])
def test_restarts_that_cannot_be_are_refused(rabitrun, flags):
    job = rabitrun("-np", 1, *flags, "true")

    assert job.status == 2 and "--max-restarts is" in job.err
