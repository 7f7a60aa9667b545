"""Where the ranks of one host find each other when no launcher of ours brings them together.

Rank 0 makes the secret of the job, serves the store, and writes both into a file that only this
user can read; the other ranks wait for that file.  A file whose writer is dead is of an earlier
job and counts as absent.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rabit.errors import InvalidArgument, TimedOut
from rabit.rendezvous.private_file import read_private_file
from rabit.rendezvous.waiting import says_after_a_while

__all__ = [
    "Meeting",
    "meeting_path",
    "start_time",
    "wait_for",
    "write_meeting",
]

_LONGEST_PAUSE_S = 0.05


@dataclass(frozen=True)
class Meeting:
    """What rank 0 tells the others."""

    store_address: str
    secret: bytes


def meeting_path(job: str) -> Path:
    """The file of the job that `job` describes, in a directory that is this user's alone."""
    digest = hashlib.sha256(job.encode()).hexdigest()[:24]
    return _private_directory() / f"{digest}.json"


def _private_directory() -> Path:
    run = Path(f"/run/user/{os.getuid()}")
    if run.is_dir() and run.stat().st_uid == os.getuid() and os.access(run, os.W_OK):
        path = run / "rabit"
    else:
        path = Path(tempfile.gettempdir()) / f"rabit-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or mode & 0o077:
        raise InvalidArgument(
            f"{path} is not a directory of user {os.getuid()} with mode 0700 (owner "
            f"{found.st_uid}, mode {mode:04o}): the secret of the job would not be safe there. "
            "Remove it, or set TMPDIR to a directory of your own."
        )
    return path


def write_meeting(path: Path, meeting: Meeting) -> None:
    """Makes `meeting` visible to the other ranks until this process ends."""
    _sweep(path.parent)
    text = json.dumps(
        {
            "version": 1,
            "pid": os.getpid(),
            "started": start_time(os.getpid()),
            "store": meeting.store_address,
            "secret": meeting.secret.hex(),
        }
    )
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    fresh.replace(path)
    atexit.register(_remove_own, path, os.getpid())


def _remove_own(path: Path, pid: int) -> None:
    # A forked child runs the exit handlers of its parent, whose file it must leave alone.
    if os.getpid() == pid:
        path.unlink(missing_ok=True)


def _sweep(directory: Path) -> None:
    """Removes what killed jobs left behind."""
    for path in directory.glob("*.json"):
        try:
            is_stale = not _is_writer_alive(json.loads(read_private_file(path, "meeting")))
        except (InvalidArgument, ValueError, OSError):
            is_stale = False  # Not ours to judge.
        if is_stale:
            path.unlink(missing_ok=True)


def wait_for(path: Path, rank: int, launcher: str, timeout: float) -> Meeting:
    """Waits until rank 0 has written `path`; at most `timeout` seconds, then TimedOut."""
    waits = f"rank {rank} waits in init() for rank 0 of this {launcher} job, which has not called it yet."
    with says_after_a_while(lambda: waits):
        return _wait_for(path, rank, launcher, timeout)


def _wait_for(path: Path, rank: int, launcher: str, timeout: float) -> Meeting:
    deadline = time.monotonic() + timeout
    pause = 0.001
    while True:
        meeting = _read_meeting(path)
        if meeting is not None:
            return meeting
        if time.monotonic() >= deadline:
            raise TimedOut(
                f"rank {rank} waited {timeout:g} s for rank 0, which has not called init(): "
                f"no live rank 0 of this {launcher} job has written {path}. Call init() on every "
                "rank, give every rank the same TMPDIR, or set RABIT_CONNECT_TIMEOUT higher."
            )
        # A file is all that unrelated processes share, so this waits by looking again.
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _read_meeting(path: Path) -> Meeting | None:
    try:
        written = json.loads(read_private_file(path, "meeting file"))
    except FileNotFoundError:
        return None
    if not _is_writer_alive(written):
        return None
    return Meeting(written["store"], bytes.fromhex(written["secret"]))


def _is_writer_alive(written: dict[str, object]) -> bool:
    pid = written.get("pid")
    return isinstance(pid, int) and start_time(pid) == written.get("started") != ""


def start_time(pid: int) -> str:
    """When process `pid` started, in a form that no later process of that number shares.

    "" when there is no such process.
    """
    try:
        # The name in parentheses may hold blanks; the fields after it do not.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
