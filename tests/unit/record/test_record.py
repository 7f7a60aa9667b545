"""The record of a rank: what is written, what is read, and what outlives the process."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rabit
from rabit.config.config import Config
from rabit.diagnostics.look.look import look_at
from rabit.engine.engine import Engine
from rabit.record import layout
from rabit.record.file import RecordFile
from rabit.record.places import private_root
from rabit.record.reader import find_records, read_counters, read_record

PACKAGE = str(Path(rabit.__file__).parents[1])


@pytest.fixture
def record(tmp_path):
    return RecordFile(str(tmp_path / "rank-3.rabit"), {"rank": 3, "size": 8})


def test_the_header_says_who_writes(record):
    found = read_counters(Path(record.path))

    assert (found.rank, found.header["size"], found.header["pid"]) == (3, 8, os.getpid())
    assert found.header["versions"]["rabit"] == rabit.__version__


def test_the_disk_has_room_for_the_whole_file(record):
    assert Path(record.path).stat().st_blocks * 512 >= layout.FILE_BYTES


def test_no_value_of_a_variable_is_in_the_file(record, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hunter2-secret")

    record.describe()

    assert b"hunter2-secret" not in Path(record.path).read_bytes()


def test_a_header_that_is_written_again_is_whole_at_any_moment(record):
    for size in range(20):
        record.describe(size=size, text="x" * (100 * size % 997))

        assert read_counters(Path(record.path)).header["size"] == size


def test_marks_wrap_around_and_the_newest_stay(record):
    for number in range(layout.MARKS + 5):
        record.mark(f"mark {number}", 7)

    marks = read_record(Path(record.path)).marks
    assert len(marks) == layout.MARKS
    assert marks[-1].text == f"mark {layout.MARKS + 4}"


def test_steps_are_counted_and_timed(record):
    for _ in range(3):
        record.end_step()

    counters = record.counters()
    assert counters["steps"] == 3
    assert [each.text for each in read_record(Path(record.path)).marks] == ["step", "step"]


def test_an_entry_that_is_being_written_is_not_shown(record):
    record.mark("whole")
    data = bytearray(Path(record.path).read_bytes())
    entry = layout.ENTRY.pack(0, 7, *([1] * 6), *([0] * 11))
    data[layout.ENTRIES_AT : layout.ENTRIES_AT + len(entry)] = entry
    Path(record.path).write_bytes(data)

    assert read_record(Path(record.path)).operations == []


def test_another_file_is_refused(tmp_path):
    (tmp_path / "rank-0.rabit").write_bytes(b"x" * layout.FILE_BYTES)

    with pytest.raises(rabit.InvalidArgument, match="another kind of file"):
        read_record(tmp_path / "rank-0.rabit")
    with pytest.raises(rabit.InvalidArgument, match="there is no record"):
        find_records(tmp_path / "none")


def test_a_good_end_is_in_the_record(tmp_path):
    with Engine(Config(record=str(tmp_path))) as engine:
        path = engine.record.path

    found = read_record(Path(path))

    assert found.header["end"] == "stopped"
    assert found.counters["is_running"] == 0


SCRIPT = """
import os, signal, sys
import numpy as np
import rabit
rabit.init()
for step in range(10**9):
    rabit.allreduce(np.ones(3, np.float32), name=f"grad{step % 5}")
    rabit.mark_step()
    if step == 5:
        print("ready", flush=True)
"""


def killed_at(folder: Path, after_s: float) -> Path:
    """The record of a process that SIGKILL has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": PACKAGE, "RABIT_RECORD": str(folder)},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(after_s)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    return folder / "rank-0.rabit"


def test_a_record_outlives_sigkill(tmp_path):
    found = read_record(killed_at(tmp_path, 0.01))

    assert found.counters["is_running"] == 1
    assert found.counters["steps"] > 5
    assert {each.name for each in found.operations} <= {f"grad{number}" for number in range(5)}
    assert {each.kind for each in found.operations} == {"allreduce"}
    assert all(each.elements == 3 and each.dtype == "float32" for each in found.operations)
    finished = [each for each in found.operations if each.state == "done"]
    assert all(each.submitted_ns <= each.agreed_ns <= each.finished_ns for each in finished)
    assert [each.round for each in finished] == sorted(each.round for each in finished)


def test_records_are_readable_after_many_kills(tmp_path):
    """A few moments; tests/faults/record_kills.py has a thousand."""
    for number in range(20):
        folder = tmp_path / str(number)

        found = read_record(killed_at(folder, 0.002 * number))

        assert found.counters["finished"] >= 5
        assert all(each.name.startswith("grad") for each in found.operations)
        assert json.dumps([each._asdict() for each in found.operations])


def test_the_record_of_a_process_that_runs_keeps_its_name(record):
    again = RecordFile(record.path, {"rank": 3, "epoch": 1})

    assert Path(again.path).name == f"rank-3.{os.getpid()}.rabit"
    assert [read_counters(each).header.get("epoch") for each in (Path(record.path), Path(again.path))] == [None, 1]


def test_a_file_that_finds_no_room_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "rank-0.rabit"
    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patched, pytest.raises(rabit.InvalidArgument, match=r"rank 0 .*No space left"):
        patched.setattr(os, "posix_fallocate", full)
        RecordFile(str(path), {"rank": 0})
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert list(tmp_path.iterdir()) == []

    assert RecordFile(str(path), {"rank": 0}).path == str(path)


def test_the_process_that_lives_is_looked_at(tmp_path):
    """A worker of the rank that was lost keeps its file open, so the rank that comes for it has another name."""
    script = """
        import os, sys, time
        from rabit.record.file import RecordFile
        RecordFile(sys.argv[1], {"rank": 0})
        if os.fork() == 0:
            os.close(1)
            sys.stdin.read()
    """
    path = tmp_path / "rank-0.rabit"
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lost:
        lost.stdout.read()  # until it has ended; the worker has not
        own = RecordFile(str(path), {"rank": 0})

        assert own.path != str(path)
        found = look_at(find_records(tmp_path), "here", 0)["ranks"]["0"]
        assert (found["header"]["pid"], bool(found["now"])) == (os.getpid(), True)
        lost.stdin.close()


def test_an_engine_finds_its_record_whatever_becomes_of_the_name(record):
    other = Path(record.path)
    other.unlink()
    other.write_bytes(b"somebody else's")

    assert Path(record.own_path).read_bytes()[: len(layout.MAGIC)] == layout.MAGIC


def test_off_means_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    with Engine(Config(record="0")) as engine:
        assert engine.record is None

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_somebody_else_made_is_not_used(tmp_path):
    (tmp_path / f"rabit-{os.getuid()}").mkdir(mode=0o755)

    with pytest.raises(PermissionError, match="private"):
        private_root({"TMPDIR": str(tmp_path)})


def test_a_folder_that_cannot_be_made_is_an_error_in_words(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(rabit.InvalidArgument, match=r"cannot be made.*RABIT_RECORD=0"):
        Engine(Config(record=str(tmp_path / "file" / "below")))
