"""rabitrun as a child process, with what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import rabit

TIMEOUT_S = 120
# The package under test, also where an installation for tests is not in the path of every Python.
PACKAGE_PATH = str(Path(rabit.__file__).parents[1])


def living(mark: str) -> list[str]:
    """Command lines of processes, zombies aside, whose environment holds `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


class Job:
    """One run of rabitrun.  Every process of it carries a mark in its environment."""

    _count = 0

    def __init__(self, arguments, environ, **options):
        Job._count += 1
        self.mark = f"TEST_JOB=job-{os.getpid()}-{Job._count}-"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, *options.pop("program", ["-m", "rabit.launch"]), *map(str, arguments)],
            env={**os.environ, **environ, name: value},
            # Not here: `python -m` would find the sources instead of the package under test.
            cwd=options.pop("cwd", tempfile.gettempdir()),
            bufsize=0,  # readline() takes no more than a line: communicate() reads the rest past a buffer
            stdin=subprocess.DEVNULL,
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            start_new_session=True,
            **options,
        )
        self.out = self.err = ""

    def wait(self):
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        self.out, self.err = (out or b"").decode(), (err or b"").decode()
        return self.process.returncode

    def wait_for_line(self, text, count=1):
        """Reads standard output until `count` lines have held `text`."""
        seen = []
        while count:
            line = self.process.stdout.readline()
            assert line, f"the output ended before {text!r}: {seen}"
            seen.append(line)
            count -= text.encode() in line
        return b"".join(seen).decode()

    def send(self, signum):
        os.kill(self.process.pid, signum)

    def assert_nothing_is_left(self):
        """A deadline, because only a parent can wait for a process and these have none.

        What a job leaves by mistake sleeps for ten minutes, so that a slow machine may take its time.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while left := living(self.mark):
            assert time.monotonic() < deadline, f"still running: {left}"
            time.sleep(0.01)


@pytest.fixture
def start():
    """Starts rabitrun and returns the Job."""
    jobs = []

    def run(*arguments, environ=None, **options):
        job = Job(arguments, environ or {}, **options)
        jobs.append(job)
        return job

    yield run
    for job in jobs:
        if job.process.poll() is None:
            job.send(signal.SIGKILL)
            job.process.wait()


@pytest.fixture
def rabitrun(start):
    """Runs rabitrun to its end: returns the Job with .out, .err and .status."""

    def run(*arguments, **options):
        job = start(*arguments, **options)
        job.status = job.wait()
        return job

    return run
