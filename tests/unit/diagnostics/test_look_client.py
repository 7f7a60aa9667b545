"""Which job of this host a command means, and what is said where that is not clear."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rabit.diagnostics.look.client import JOB_PREFIX, find_job
from rabit.errors import InvalidArgument
from rabit.record.places import own_folder, private_root


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return Path(private_root(os.environ))


def test_several_jobs_are_shown_with_their_commands(root):
    for pid in (os.getpid(), os.getppid()):
        (root / f"{JOB_PREFIX}{pid}.sock").touch()

    with pytest.raises(InvalidArgument, match="2 jobs of this user run on this host") as raised:
        find_job()

    own = Path(f"/proc/{os.getpid()}/cmdline").read_text().split("\0")[1]
    assert f"{os.getpid()}: {own[:40]}" in str(raised.value)


def test_without_a_job_the_newest_records_are_named(root):
    with pytest.raises(InvalidArgument, match=r"\(rabitrun --record FOLDER\)"):
        find_job()
    folder = own_folder("records", os.environ)

    with pytest.raises(InvalidArgument) as raised:
        find_job()

    assert f"the newest of this host are in {folder}." in str(raised.value)
