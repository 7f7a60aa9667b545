"""The guard: ends the processes of a job when the launcher cannot do it any more.

It is a process of its own that runs this file alone.  The launcher writes the session of each
rank to its standard input; when that closes without the word "done", the launcher is dead, and
everything that belongs to the job is killed.  A process belongs to it if it is in a session of
a rank or carries the job's mark in its environment, as even a daemon of a rank does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

MARK = "_RABIT_JOB"
_LONGEST_S = 2.0


def members(job: str, sessions: set[int]) -> list[int]:
    """Living processes of the job, except this one."""
    found = []
    mark = f"{MARK}={job}".encode()
    for entry in Path("/proc").iterdir():
        pid = int(entry.name) if entry.name.isdigit() else os.getpid()
        if pid != os.getpid() and _belongs(entry, mark, sessions):
            found.append(pid)
    return found


def _belongs(entry: Path, mark: bytes, sessions: set[int]) -> bool:
    try:
        # The name in parentheses may hold anything; the fields after it are plain.
        state, _, _, session = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:4]
        if state in (b"Z", b"X"):
            return False
        if int(session) in sessions:
            return True
        return mark in (entry / "environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False  # It has ended, or belongs to another user.


def kill_members(job: str, sessions: set[int], longest_s: float = _LONGEST_S) -> int:
    """Kills the processes of the job until none is left, at most for a time; returns the rest."""
    deadline = time.monotonic() + longest_s
    while True:
        left = members(job, sessions)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # It has ended by itself.
        if not left or time.monotonic() >= deadline:
            return len(left)
        time.sleep(0.01)  # A killed process needs a moment to vanish; it cannot be waited for.


def main() -> int:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)
    job = sys.argv[1]
    text = sys.stdin.buffer.read().decode("ascii", "replace")
    words = text.split()
    if "done" not in words:
        kill_members(job, {int(word) for word in words if word.isdigit()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
