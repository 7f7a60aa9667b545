"""Two jobs and one folder: the second writer is refused, and nothing of one that has ended stands in its way."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from rabit.checkpoint import Alone, Checkpoint, CheckpointFailed
from rabit.checkpoint.files import Files
from rabit.checkpoint.writer import LOCK, Writer

# Another job: it saves, says so, and continues until it is told to end.
OTHER = """
import os, sys
from rabit.checkpoint import Alone, Checkpoint
checkpoint = Checkpoint(sys.argv[1], keep=1, peers=Alone())
checkpoint.save({"a": 1}, step=1)
checkpoint.wait()
children = os.fork() if sys.argv[2] == "forks" else None
if children == 0:
    sys.stdin.read()
    os._exit(0)
print("saved", flush=True)
sys.stdin.readline()
checkpoint.save({"a": 1}, step=2)
checkpoint.close()
print("closed", flush=True)
sys.stdin.readline()
"""


@contextmanager
def other_job(folder, how="alone"):
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "saved\n"
        yield process
        process.kill()


def save(folder, step=5):
    with Checkpoint(folder, peers=Alone()) as checkpoint:
        checkpoint.save({"a": 2}, step=step)
        return checkpoint.wait()


def test_the_second_writer_is_refused_by_the_name_of_the_first(tmp_path):
    with other_job(tmp_path) as process:
        with pytest.raises(CheckpointFailed, match="another job writes its checkpoints there") as raised:
            save(tmp_path)
        assert f"process {process.pid} on " in str(raised.value) and "-c" in str(raised.value)
        assert Checkpoint(tmp_path, peers=Alone()).restore().step == 1

        process.stdin.write("continue\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n"
        assert save(tmp_path) == 3


@pytest.mark.parametrize("how", ["alone", "forks"])
def test_a_job_that_was_killed_stands_in_nobody_s_way(tmp_path, how):
    with other_job(tmp_path, how) as process:
        process.kill()
        process.wait()

        assert save(tmp_path) == 2


def test_a_refused_save_is_tried_again(tmp_path):
    checkpoint = Checkpoint(tmp_path, peers=Alone(), on_error="warn")
    with other_job(tmp_path):
        checkpoint.save({"a": 2}, step=5)
        assert checkpoint.wait() is None
    checkpoint.save({"a": 2}, step=6)

    assert checkpoint.wait() == 2


def test_another_process_of_the_same_job_may_write(tmp_path):
    script = (
        "import sys\nfrom pathlib import Path\nfrom rabit.checkpoint.files import Files\n"
        "from rabit.checkpoint.writer import Writer\nwriter = Writer(Path(sys.argv[1]), Files(), 'elastic')\n"
        "writer.begin()\nprint('locked', flush=True)\nsys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "locked\n"

        Writer(tmp_path, Files(), "elastic").begin()
        for job in ("another", ""):
            with pytest.raises(OSError, match="another job"):
                Writer(tmp_path, Files(), job).begin()

        process.kill()


def test_what_a_stranger_wrote_into_the_lock_reaches_no_terminal(tmp_path):
    with other_job(tmp_path):
        (tmp_path / LOCK).write_bytes(b"\n\x1b[2J\xff" + b"x" * 5000)
        with pytest.raises(CheckpointFailed, match="another job") as raised:
            save(tmp_path)

    assert "\x1b" not in str(raised.value) and len(str(raised.value)) < 2000


def test_without_locks_rank_0_says_so_once(tmp_path, capsys):
    class WithoutLocks(Files):
        def lock(self, path, text):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with Checkpoint(tmp_path, peers=Alone(), files=WithoutLocks()) as checkpoint:
        for step in (1, 2):
            checkpoint.save({"a": 1}, step=step)

    assert Checkpoint(tmp_path, peers=Alone()).restore().step == 2
    assert capsys.readouterr().err.count("has no locks") == 1
