"""A job as seen from outside while it runs: stacks, top, the stall report, metrics and records."""

from __future__ import annotations

import http.client
import json
import os
import pickle
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from support.ports import listening_ports

import rabit
from rabit.launch.window import Window

PACKAGE = str(Path(rabit.__file__).parents[1])
HANGS = """
import time
import numpy as np
import rabit

rabit.init()
for step in range(20):
    rabit.allreduce(np.ones(8), name="warm")
    rabit.mark_step()
if rabit.rank() == 1:
    time.sleep(600)
rabit.allreduce(np.ones(8), name="grad")
"""


def command(folder, *words, **options):
    return subprocess.run(
        [sys.executable, "-m", "rabit.launch", *map(str, words)],
        env={**os.environ, "PYTHONPATH": PACKAGE, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


@pytest.fixture
def hanging(tmp_path, start):
    """A job whose rank 1 never comes, once all is in place; its folder."""
    script = tmp_path / "train.py"
    script.write_text(HANGS)
    flags = ["--stall-warning", "1s"]
    job = start("-np", 2, *flags, sys.executable, script, environ={"TMPDIR": str(tmp_path), "PYTHONPATH": PACKAGE})
    deadline = time.monotonic() + 30
    while '"step": 20' not in command(tmp_path, "top", "--once", "--json").stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return job, tmp_path


def test_a_job_that_hangs_is_seen_from_all_sides(hanging):
    job, folder = hanging

    stacks = command(folder, "stacks").stdout
    document = json.loads(command(folder, "stacks", "--json").stdout)
    table = command(folder, "top", "--once").stdout

    assert "train.py:11, in <module>" in stacks and "train.py:12, in <module>" in stacks
    assert set(document["ranks"]) == {"0", "1"}
    assert "waits for grad" in table
    assert command(folder, "doctor", str(job.process.pid + 1)).returncode == 2
    job.process.terminate()
    job.wait()
    assert "rabitrun: stall:   at " in job.err
    assert "train.py:11, in <module>" in job.err


def test_records_of_a_job_that_was_ended_are_shown_and_converted(hanging):
    job, folder = hanging
    job.process.terminate()
    job.wait()
    (records,) = (each for each in (folder / f"rabit-{os.getuid()}").iterdir() if each.is_dir())

    shown = json.loads(command(folder, "record", "show", "--json", records).stdout)
    command(folder, "record", "convert", records, "-o", folder / "trace.json")
    command(folder, "record", "convert", records, "--to", "fr", "-o", folder / "fr")

    assert [each["name"] for each in shown["0"]["operations"]] == ["warm"] * 20 + ["grad"]
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {each["pid"] for each in events} == {0, 1}
    assert all(each.get("dur", 0) >= 0 for each in events)
    dump = pickle.loads((folder / "fr" / "rank_0").read_bytes())
    assert [each["state"] for each in dump["entries"][:-1]] == ["completed"] * 20
    assert dump["entries"][-1]["profiling_name"] == "nccl:all_reduce"


def test_the_end_of_a_job_that_failed_names_its_records(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import rabit\nrabit.init()\nrabit.barrier()\nassert rabit.rank() == 0")

    said = command(tmp_path, "-np", 2, sys.executable, script).stderr

    (records,) = (tmp_path / f"rabit-{os.getuid()}").iterdir()
    assert f"Its records are kept: `rabitrun doctor {records}` on localhost reads them.\n" in said


def test_a_good_end_leaves_nothing_and_record_keeps_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import rabit\nrabit.init()\nrabit.barrier()\n")

    gone = command(tmp_path, "-np", 2, sys.executable, script)
    kept = command(tmp_path, "-np", 2, "--record", tmp_path / "kept", sys.executable, script)

    assert (gone.returncode, kept.returncode) == (0, 0), gone.stderr + kept.stderr
    assert list((tmp_path / f"rabit-{os.getuid()}").iterdir()) == []
    assert {each.name for each in (tmp_path / "kept").glob("*.rabit")} == {"rank-0.rabit", "rank-1.rabit"}
    assert command(tmp_path, "doctor", tmp_path / "kept").returncode == 0


SERVED = """
import sys, time
import numpy as np
import rabit

rabit.init()
for step in range(3):
    rabit.allreduce(np.ones(8), name="grad")
    rabit.mark_step()
assert rabit.metrics()["rabit/operations"] >= 3
print("ready", flush=True)
time.sleep(600)
"""


def scraped(port):
    """The metrics at this port; "": something else listens there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return answer.read().decode()
    except (OSError, http.client.HTTPException):
        return ""


def test_the_agent_serves_the_numbers_of_its_ranks(tmp_path, start):
    script = tmp_path / "train.py"
    script.write_text(SERVED)
    flags = ["--metrics", "127.0.0.1:0"]
    job = start("-np", 2, *flags, sys.executable, script, environ={"TMPDIR": str(tmp_path), "PYTHONPATH": PACKAGE})
    job.wait_for_line("ready", 2)

    text = next(filter(None, (scraped(port) for _, port in listening_ports([job.process.pid]))))

    assert text.endswith("# EOF\n")
    steps = [line for line in text.splitlines() if line.startswith("rabit_steps_total")]
    assert len(steps) == 2 and all(line.endswith(" 3") for line in steps)
    job.process.terminate()
    job.wait()


@pytest.mark.parametrize(("hosts", "more"), [(4, []), (5, ["1 more folder"]), (9, ["5 more folders"])])
def test_a_verdict_says_of_how_many_folders_it_shows_some(hosts, more):
    class NoFailures:
        def failures(self):
            return []

    window = Window(NoFailures(), [], None, hosts, print)
    for rank in range(hosts):
        window.last_seen(rank, {"folder": f"/records/{rank}", "host": f"host{rank}"})

    lines = [line for line in window.verdict() if "ecords are kept" in line]

    assert [f"`rabitrun doctor /records/{rank}` on host{rank}" in lines[rank] for rank in range(4)] == [True] * 4
    assert lines[4:] == [f"Records are kept in {text}." for text in more]
