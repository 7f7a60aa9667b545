"""The files of the timeline and the log in jobs that do not end well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rabit
from rabit.testing import run_ranks

LOOP = """
import os, resource, sys
import numpy as np
{before}
import rabit

rabit.init()
data = np.ones(8, dtype=np.float32)
for step in range(int(sys.argv[1])):
    for handle in [rabit.allreduce_async_(data, name=f"t{{i}}") for i in range(20)]:
        handle.wait(20)
rabit.shutdown()
print("THROUGH")
"""


def start(folder: Path, steps: int, before: str = "", **files: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(LOOP.format(before=before))
    variables = {name: text for name, text in os.environ.items() if not name.startswith("RABIT_")}
    if "RABIT_LIBRARY" in os.environ:
        variables["RABIT_LIBRARY"] = os.environ["RABIT_LIBRARY"]
    for name, file in (files or {"RABIT_TIMELINE": "trace.json"}).items():
        variables[name] = str(folder / file)
    return subprocess.Popen(
        [sys.executable, str(script), str(steps)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def events_of_killed(path: Path) -> list:
    """The file is whole between writes; a kill in the middle of one leaves whole lines and a part of one."""
    text = path.read_text()
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        whole = text[: text.rindex("\n")].rstrip(",")
        return json.loads(whole + "]")


def names(events) -> set[str]:
    return {event["name"] for event in events}


def test_a_killed_job_leaves_a_file_that_can_be_read(tmp_path):
    path = tmp_path / "trace.json"
    with start(tmp_path, 1_000_000) as process:
        deadline = time.monotonic() + 60
        while not path.exists() or path.stat().st_size < 20_000:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    assert "NEGOTIATE_ALLREDUCE" in names(events_of_killed(path))


def test_a_disk_that_is_full_ends_the_timeline_and_not_the_job(tmp_path):
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))"
    with start(tmp_path, 300, limit) as process:
        out, said = process.communicate(timeout=60)

    assert process.returncode == 0 and "THROUGH" in out, said
    assert said.count("ends here, after") == 1 and "the job continues without it" in said, said
    path = tmp_path / "trace.json"
    assert path.stat().st_size <= 30_000
    assert "NEGOTIATE_ALLREDUCE" in names(json.loads(path.read_text()))


def test_a_log_that_a_full_disk_has_cut_ends_with_a_line_that_says_so(tmp_path):
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))"
    with start(tmp_path, 300, limit, RABIT_COMM_LOG="ops.csv") as process:
        out, said = process.communicate(timeout=60)

    assert process.returncode == 0 and "THROUGH" in out, said
    assert said.count("the log") == 1 and "ends here, after" in said, said
    *whole, last = (tmp_path / "ops.0.csv").read_text().splitlines()
    assert len(whole) > 100 and {line.count(",") for line in whole} == {7}
    assert last.startswith("# ")


def test_a_pipe_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def work(engine):
        with pytest.raises(rabit.InvalidArgument, match=r"rank 0: the timeline .* cannot go into a pipe"):
            engine.start_timeline(str(path))

    run_ranks(1, work)
    os.close(reader)


def test_an_operation_has_one_row_and_its_kind_once(tmp_path):
    path = str(tmp_path / "trace.json")

    def work(engine):
        if engine.rank == 0:
            engine.start_timeline(path)
        rabit.broadcast(np.ones(100_000), 0, name="broadcast.w", engine=engine)
        if engine.rank == 0:
            engine.stop_timeline()

    run_ranks(2, work)

    (written,) = tmp_path.iterdir()
    events = json.loads(written.read_text())
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {row for row in rows if row.endswith(".w")} == {"broadcast.w"}
