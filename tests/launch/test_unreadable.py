"""Files, folders and commands that rabitrun may not read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def ordinary(tmp_path):
    """Runs rabitrun as a user whom permissions hold; the result, with what it has written."""
    powers = "-dac_override,-dac_read_search"
    drop = ["setpriv", f"--bounding-set={powers}", f"--inh-caps={powers}"] if os.geteuid() == 0 else []
    if drop and shutil.which(drop[0]) is None:
        pytest.skip("setpriv is not installed")

    def run(*words, cwd=tmp_path):
        command = [*drop, sys.executable, "-m", "rabit.launch", *map(str, words)]
        return subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.fixture
def closed(tmp_path):
    """A folder that nobody may look into, with a program in it."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "x.sh").write_text("#!/bin/sh\ntrue\n")
    (folder / "x.sh").chmod(0o755)
    folder.chmod(0)
    yield folder
    folder.chmod(0o700)


def test_a_command_that_cannot_be_read(ordinary, closed):
    done = ordinary("-np", 1, closed / "x.sh")

    assert (done.returncode, done.stdout) == (126, "")
    assert done.stderr == (
        f"rabitrun: the command '{closed}/x.sh' cannot be read on localhost: Permission denied. Correct its "
        "path, or the permissions of the file and of the folders above it.\n"
    )


def test_a_command_with_an_impossible_name(ordinary, tmp_path):
    done = ordinary("-np", 1, tmp_path / ("x" * 300))

    assert done.returncode == 126
    assert "cannot be read on localhost: File name too long. Correct its path" in done.stderr


def test_a_working_directory_that_may_not_be_entered(ordinary, closed):
    if os.geteuid() != 0:
        pytest.skip("only root starts a process in such a folder")

    done = ordinary("-np", 1, "true", cwd=closed)

    assert done.returncode == 1
    assert f"the working directory {closed} does not exist on localhost, or may not be entered" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--hostfile", "{}/x.sh"], "the host file {}/x.sh cannot be read"),
        (["-np", 1, "--output-filename", "{}/out"], "--output-filename {}/out: Permission denied"),
        (["-np", 1, "--config-file", "{}/x.sh"], "the configuration file {}/x.sh cannot be read"),
        (["-np", 1, "--secret-file", "{}/x.sh"], "the secret file {}/x.sh cannot be read"),
        (["-np", 1, "--secret-file", "/"], "the secret file / is not safe"),
        (["--min-np", 1, "--host-discovery-script", "{}/x.sh"], "/x.sh cannot be run"),
        (["checkpoint", "ls", "{}"], "rabitrun: {}: Permission denied. Correct the path"),
        (["checkpoint", "ls", "{}/x"], "rabitrun: {}/x: Permission denied. Correct the path"),
        (["log", "{}/x"], "there is no file {}/x.N"),
        (["-np", 2, "tune", "--budget", "1s", "-o", "{}/t.json"], "cannot write {}/t.json: Permission denied"),
    ],
)
def test_what_cannot_be_read_is_told_without_a_traceback(ordinary, closed, words, text):
    command = [] if {"checkpoint", "log", "tune"} & set(words) else ["true"]

    done = ordinary(*(str(word).format(closed) for word in words), *command)

    assert done.returncode in (1, 2)
    assert text.format(closed) in done.stderr and "Traceback" not in done.stderr
