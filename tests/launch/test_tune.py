"""rabitrun tune: from measuring to a job that goes by the table."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios

import pytest

USE = """
import sys, numpy as np, rabit
rabit.init()
for bytes in (1 << 13, 1 << 17):
    rabit.allreduce(np.ones(bytes // 4, np.float32), name=f"x{bytes}")
rows = [(each["algorithm"], each["row"]) for each in rabit.statistics()["routes"]]
print(rows, flush=True)
rabit.shutdown()
"""


def tune(rabitrun, path, *more):
    return rabitrun(
        "tune", "-np", 2, "-o", path, "--budget", "6s", "--kinds", "allreduce,alltoall",
        "--bytes", "8K,128K", *more,
    )  # fmt: skip


def test_a_table_is_measured_written_and_used(rabitrun, tmp_path):
    table, picture = tmp_path / "table.json", tmp_path / "tune.svg"
    job = tune(rabitrun, table, "--plot", picture, "--csv", tmp_path / "rows.csv")

    assert job.status == 0, job.err
    assert "4/4 in" in job.err
    assert f"RABIT_ROUTE_TABLE={table}" in job.out
    document = json.loads(table.read_text())
    measured = {(row["kind"], row["bytes"]) for row in document["rows"]}
    assert measured == {
        (kind, size) for kind in ("allreduce", "alltoall") for size in (8192, 131072)
    }
    assert len([row for row in document["rows"] if row["is_winner"]]) == 4
    assert all(row["calls"] > 0 and row["p95_us"] >= row["p50_us"] for row in document["rows"])
    assert document["topology"]["ranks"] == 2 and document["date"] and document["rabit"]
    assert picture.read_text().startswith("<svg ")
    assert (tmp_path / "rows.csv").read_text().count("\n") == len(document["rows"]) + 1

    script = tmp_path / "use.py"
    script.write_text(USE)
    job = rabitrun("-np", 2, sys.executable, script, environ={"RABIT_ROUTE_TABLE": str(table)})

    assert job.status == 0, job.err
    for size in (8192, 131072):
        winner = next(
            row["candidate"]
            for row in document["rows"]
            if (row["kind"], row["bytes"], row["is_winner"]) == ("allreduce", size, True)
        )
        _, _, algorithm = winner.partition("/")
        if algorithm:
            assert f"('{algorithm}', 'route_table')" in job.out


def test_a_budget_that_is_too_short_is_held_and_what_it_left_is_named(rabitrun, tmp_path):
    table = tmp_path / "table.json"
    job = rabitrun("tune", "-np", 2, "-o", table, "--budget", "1s", "--kinds", "allreduce", "--bytes", "1K,256M")

    assert job.status == 0, job.err
    assert "# --budget 1s was over before " in job.out and "allreduce float32 268435456 B" in job.out
    document = json.loads(table.read_text())
    assert {"kind": "allreduce", "type": "float32", "bytes": 1 << 28} in document["not_measured"]
    script = tmp_path / "use.py"
    script.write_text(USE)
    job = rabitrun("-np", 2, sys.executable, script, environ={"RABIT_ROUTE_TABLE": str(table)})
    assert job.status == 0, job.err


TWELVE = ("--budget", "20s", "--kinds", "allreduce,alltoall", "--bytes", "1K:1M")


def interrupted(start, name, points, *arguments):
    """A run on which a signal falls when so many points have been measured."""
    controller, terminal = pty.openpty()  # Elsewhere progress is written too sparsely to wait for.
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 200, 0, 0))
    job = start(
        "tune", "-np", 2, *arguments,
        stdout=terminal, stderr=terminal, environ={"TERM": "xterm", "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(terminal)
    seen = ""
    # Not every state is drawn.
    while not any(int(each) >= points for each in re.findall(r"\] (\d+)/", seen)):
        seen += os.read(controller, 4096).decode(errors="replace")
    job.send(signal.Signals[name])
    assert job.wait() == 128 + signal.Signals[name]
    with contextlib.suppress(OSError):  # Linux says so when the other side has closed it.
        while piece := os.read(controller, 4096):
            seen += piece.decode(errors="replace")
    os.close(controller)
    job.out = job.err = seen.replace("\r\n", "\n")
    job.assert_nothing_is_left()
    return job


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_writes_a_table_of_what_it_has_measured(start, rabitrun, tmp_path, name):
    table = tmp_path / "table.json"

    job = interrupted(start, name, 2, *TWELVE, "-o", table)

    document = json.loads(table.read_text())
    done = {(each["kind"], each["bytes"]) for each in document["rows"]}
    missing = {(each["kind"], each["bytes"]) for each in document["not_measured"]}
    assert {("allreduce", 1024), ("alltoall", 1024)} <= done and ("allreduce", 1 << 20) in missing
    assert len(done | missing) == 12 and not done & missing
    assert f"rabitrun tune: ended by {name} with {len(done)} of 12 points measured." in job.err
    assert f"wrote {table}; use it with RABIT_ROUTE_TABLE={table}" in job.out
    assert "chooses by itself where nothing was measured" in job.out
    assert "Traceback" not in job.err and "at exit" not in job.err and "rank 0 is" not in job.err
    used = rabitrun(
        "-np", 2, sys.executable, "-c", "import rabit; rabit.init()",
        environ={"RABIT_ROUTE_TABLE": str(table)},
    )  # fmt: skip
    assert used.status == 0, used.err


def test_an_interrupted_run_leaves_an_earlier_table_alone(start, tmp_path):
    table = tmp_path / "table.json"
    table.write_text("a whole one")

    job = interrupted(start, "SIGINT", 1, *TWELVE, "-o", table)

    assert table.read_text() == "a whole one"
    assert f"RABIT_ROUTE_TABLE={tmp_path}/table.partial.json" in job.out
    assert json.loads((tmp_path / "table.partial.json").read_text())["not_measured"]


def test_an_interrupted_run_without_a_point_writes_nothing(start, tmp_path):
    # The first tenth of the budget goes into how a large allreduce is cut.
    long = ("--budget", "10m", "--kinds", "allreduce", "--bytes", "8M")

    job = interrupted(start, "SIGINT", 0, *long, "-o", tmp_path / "table.json")

    assert "with 0 of 1 points measured.\nrabitrun tune: no table is written." in job.err
    assert not (tmp_path / "table.json").exists()


PLAY = """
import rabit
from rabit.bench.cases import Spec
from rabit.bench.mixture import play
from rabit.bench.winners import Candidate, Winner

rabit.init()
kinds = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast")
tables = {
    name: [Winner(each, "", 4096, Candidate("builtin", algorithm)) for each in kinds[:1]]
    for name, algorithm in (("first", "gather_all"), ("second", "ring"))
}
specs = [Spec(Spec.kind_of(each), 4096, rabit.DType.FLOAT32) for each in kinds]
name, seconds = play(rabit.default_engine(), tables, specs, 0.1)
assert name in tables and list(seconds) == ["first", "second"], (name, seconds)
assert all(each > 0 for each in seconds.values())
everyone = rabit.allgather_object((name, seconds))
assert everyone[0] == everyone[1], everyone
rabit.shutdown()
"""


def test_ranks_that_play_tables_have_the_same_winner(rabitrun, tmp_path):
    script = tmp_path / "play.py"
    script.write_text(PLAY)

    job = rabitrun("-np", 2, sys.executable, script)

    assert job.status == 0, job.err


def test_a_table_of_another_job_ends_every_rank_with_the_reason(rabitrun, tmp_path):
    table = tmp_path / "table.json"
    assert tune(rabitrun, table).status == 0

    job = rabitrun(
        "-np", 3, sys.executable, "-c", "import rabit; rabit.init()",
        environ={"RABIT_ROUTE_TABLE": str(table)},
    )  # fmt: skip

    assert job.status != 0
    assert "on another topology: ranks is 2 there and 3 here" in job.err


def test_rules_in_force_are_not_what_is_to_be_measured(rabitrun, tmp_path):
    job = tune(rabitrun, tmp_path / "t.json", "--route", "allreduce:builtin/ring")

    assert job.status == 2
    assert "route is 'allreduce:builtin/ring', from RABIT_ROUTE" in job.err
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize("flag", ["-o", "--csv", "--plot"])
def test_files_that_cannot_be_written_are_told_before_anything_is_measured(rabitrun, tmp_path, flag):
    path = tmp_path / "nowhere" / "file"

    job = tune(rabitrun, tmp_path / "t.json", flag, path)

    assert job.status == 2
    assert f"cannot write {path}: No such file or directory." in job.err
    assert "busbw" not in job.out and not (tmp_path / "t.json").exists()


def test_a_program_called_tune_comes_first(rabitrun, tmp_path):
    program = tmp_path / "tune"
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)

    job = rabitrun("-np", 1, "tune", environ={"PATH": f"{tmp_path}:/usr/bin:/bin"})

    assert job.out == "[0] mine\n"
    assert "rabitrun -np N python -m rabit.bench.tune" in job.err
