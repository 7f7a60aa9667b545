"""RABIT_COMM_LOG in a job, and rabitrun log."""

from __future__ import annotations

import csv
import sys

SCRIPT = """
import numpy as np, rabit
rabit.init()
for step in range(10):
    small = rabit.allreduce(np.ones(4, np.float32), name="small")
    rabit.grouped_allreduce([np.ones(1000), np.ones(500)], name="two")
    rabit.allgather(np.ones(100, np.int8), name="g")
    handle = rabit.broadcast_async(np.ones(64), 0, name="b")
    handle.result()
    rabit.ordered_allreduce_(np.ones(10), rabit.Sum)
rabit.shutdown()
"""


# The second engine of a process, as after the loss of a rank.
TWICE = """
import numpy as np, rabit
for name in ("first", "second"):
    rabit.init()
    rabit.allreduce(np.ones(4, np.float32), name=name)
    rabit.shutdown()
"""


def test_a_second_engine_keeps_the_log_and_the_timeline_of_the_first(rabitrun, tmp_path):
    script, log, trace = tmp_path / "script.py", tmp_path / "ops.csv", tmp_path / "trace.json"
    script.write_text(TWICE)

    job = rabitrun("-np", 2, "--comm-log", log, "--timeline", trace, sys.executable, script)

    assert job.status == 0, job.err
    for rank in (0, 1):
        assert '"first",' in (tmp_path / f"ops.{rank}.csv").read_text()
        assert '"second",' in (tmp_path / f"ops.engine2.{rank}.csv").read_text()
    assert "allreduce.first" in trace.read_text()
    assert "allreduce.second" in (tmp_path / "trace.engine2.json").read_text()


def test_every_operation_is_counted_by_kind_and_size(rabitrun, tmp_path):
    script, log = tmp_path / "script.py", tmp_path / "ops.csv"
    script.write_text(SCRIPT)

    job = rabitrun("-np", 2, "--comm-log", log, sys.executable, script)
    assert job.status == 0, job.err
    told = rabitrun("log", log, "--csv", tmp_path / "table.csv")

    assert told.status == 0, told.err
    with (tmp_path / "table.csv").open() as file:
        table = {(row["kind"], int(row["bytes"])): row for row in csv.DictReader(file)}
    assert {key: int(row["count"]) for key, row in table.items()} == {
        ("allreduce", 16): 10,
        ("allreduce", 8000): 10,
        ("allreduce", 4000): 10,
        ("allgather", 200): 10,
        ("broadcast", 512): 10,
        ("allreduce", 80): 10,
    }
    assert all(float(row["total_ms"]) > 0 for row in table.values())
    assert "in 60 operations" in told.out
    assert told.out.count(" it came last ") == 2


def test_a_log_that_cannot_be_written_ends_the_start(rabitrun, tmp_path):
    job = rabitrun(
        "-np", 1, "--comm-log", tmp_path / "none" / "ops.csv", sys.executable, "-c",
        "import rabit; rabit.init()",
    )  # fmt: skip

    assert job.status != 0
    assert "rank 0: cannot write the log" in job.err


def test_without_files_the_command_says_how_to_make_them(rabitrun, tmp_path):
    job = rabitrun("log", tmp_path / "ops.csv")

    assert job.status == 2
    assert f"Run the job with RABIT_COMM_LOG={tmp_path / 'ops.csv'} here" in job.err
