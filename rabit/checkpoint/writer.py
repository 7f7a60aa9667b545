"""Writer: one job at a time writes into a folder of checkpoints.

The system lets a lock go when its process ends, however it ends; so a job that died never stands in the way of the
next.  A lock works across hosts where the file system has locks, as NFS does.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

from rabit.checkpoint.files import Files, Lock

__all__ = ["LOCK", "Writer"]

LOCK = "writer.lock"
_LONGEST_TEXT = 1000
# What file systems say that have none.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Writer:
    """The right to write into a folder, which rank 0 has for its job.  One thread at a time."""

    def __init__(self, folder: Path, files: Files, job: str) -> None:
        """job: its name, equal in all of its processes and in no other's; empty: unknown."""
        self._path = folder / LOCK
        self._files = files
        self._job = job
        self._lock: Lock | None = None
        self._is_without_locks = False

    def begin(self) -> None:
        """Before every generation.  Raises OSError with the name of the job that writes there."""
        if self._lock is not None or self._is_without_locks:
            return
        self._files.make_folder(self._path.parent)
        command = " ".join(sys.argv)
        text = f"{self._job}\n{command} (process {os.getpid()} on {socket.gethostname()})"
        try:
            self._lock = self._files.lock(self._path, text.encode(errors="replace")[:_LONGEST_TEXT])
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            self._is_without_locks = True
            print(
                f"rabit: checkpoint: the file system of {self._path.parent} has no locks ({error.strerror}): a second "
                "job that writes there would not be refused, and the two would remove each other's generations. "
                "Give each job a folder of its own.",
                file=sys.stderr,
            )
            return
        if self._lock is None:
            self._check_holder()

    def end(self) -> None:
        """Others may write.  `begin` takes it again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _check_holder(self) -> None:
        """Raises OSError if another job has the lock, and not a process of this one that has been rank 0."""
        data = bytearray(_LONGEST_TEXT)
        count = self._files.read(self._path, 0, memoryview(data))
        job, _, holder = data[:count].decode(errors="replace").partition("\n")
        if self._job and job == self._job:
            return
        raise OSError(
            errno.EBUSY,
            f"another job writes its checkpoints there: {holder or 'of an unknown name'!r}. Give this job a folder "
            "of its own, or end that one",
        )
