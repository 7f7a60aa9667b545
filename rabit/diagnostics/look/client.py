"""The jobs of this host and user that run, and a look at one of them."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

from rabit.config.config import process_environment
from rabit.errors import InvalidArgument, TimedOut
from rabit.printable import printable
from rabit.record.places import private_root

__all__ = ["JOB_PREFIX", "JobLink", "find_job", "jobs_here", "look_at_job"]

# Of the sockets of launchers, in the private folder of the user; the number of the launcher's process follows.
JOB_PREFIX = "job-"
_EXTRA_S = 5.0
_COMMAND_MAX = 100  # characters of it that an error shows


def jobs_here() -> dict[int, Path]:
    """The sockets of jobs that run, by the process of their launcher; what dead launchers left is removed."""
    found = {}
    with contextlib.suppress(OSError):
        for path in Path(private_root(process_environment())).glob(f"{JOB_PREFIX}*.sock"):
            pid = path.stem.removeprefix(JOB_PREFIX)
            if not pid.isdigit():
                continue
            if not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            found[int(pid)] = path
    return found


def find_job(word: str = "") -> Path:
    """The socket of the job whose launcher is the process `word`; "": of the only job.

    Raises InvalidArgument if there is no such job, or more than one to choose from.
    """
    jobs = jobs_here()
    if word:
        if word.isdigit() and int(word) in jobs:
            return jobs[int(word)]
        known = ", ".join(map(str, sorted(jobs))) or "none"
        raise InvalidArgument(
            f"there is no job {word!r} of this user on this host: running are {known}. Name the process of its "
            "rabitrun, on the host where that runs."
        )
    if len(jobs) == 1:
        return next(iter(jobs.values()))
    if not jobs:
        raise InvalidArgument(
            "no job of this user runs on this host. Call this on the host of its rabitrun, or give the folder of its "
            f"records{_newest_records()}."
        )
    known = "; ".join(f"{pid}: {_command_of(pid)}" for pid in sorted(jobs))
    raise InvalidArgument(
        f"{len(jobs)} jobs of this user run on this host. Add the process number of one, such as {min(jobs)}, to the "
        f"command. {known}"
    )


def _newest_records() -> str:
    """What a job that has failed without --record has left, to be named in an error."""
    try:
        folders = Path(private_root(process_environment())).glob("records-*")
        kept = [(folder.stat().st_mtime_ns, folder) for folder in folders]
    except OSError:
        kept = []
    return f"; the newest of this host are in {max(kept)[1]}" if kept else " (rabitrun --record FOLDER)"


def _command_of(pid: int) -> str:
    """How a launcher was called, without its interpreter, in a few words."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "has ended"
    return printable(" ".join(words[1:]))[:_COMMAND_MAX].strip()


class JobLink:
    """A connection to a launcher.  One thread only."""

    def __init__(self, path: Path) -> None:
        """Raises TimedOut if the launcher does not answer."""
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(_EXTRA_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise TimedOut(
                f"the launcher of the job {path.stem} does not answer: {error}. It may have ended just now."
            ) from error

    def look(self, stacks: int = 1, interval_s: float = 0.3) -> dict[str, Any]:
        """One look at all ranks.  Blocks for `interval_s` and some seconds at most; raises TimedOut after that."""
        deadline = time.monotonic() + interval_s + _EXTRA_S
        ask = {"stacks": stacks, "interval": interval_s}
        answer = bytearray()
        try:
            self._socket.sendall(json.dumps(ask).encode() + b"\n")
            while not answer.endswith(b"\n"):
                self._socket.settimeout(max(0.01, deadline - time.monotonic()))
                part = self._socket.recv(1 << 18)
                if not part:
                    raise ConnectionError("it has closed the connection")
                answer += part
        except OSError as error:
            raise TimedOut(
                f"the launcher of the job {self._path.stem} does not answer: {error}. The job may have ended just now."
            ) from error
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        self._socket.close()


def look_at_job(word: str = "", stacks: int = 1, interval_s: float = 0.3) -> dict[str, Any]:
    """One look at a job of this host; see find_job and JobLink.look."""
    with contextlib.closing(JobLink(find_job(word))) as link:
        return link.look(stacks, interval_s)
