"""Files: the operations on files that a commit is made of, one method for each.

Everything that checkpoints do on disk goes through here, so that a test can stand between any two
of them, lose power there, or answer with an error of the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from pathlib import Path

__all__ = ["Files", "Lock"]


class Lock:
    """A lock of this process, until it is released, nothing refers to it any more, or the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._close = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        """Another process may have it."""
        self._close()


class Files:
    """The files of this machine.  Thread-safe.  Every method raises OSError."""

    def make_folder(self, path: Path) -> None:
        """Makes `path` and what lies above it; returns when the names of new folders are on disk."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        path.mkdir(exist_ok=True)
        self.sync_folder(path.parent)

    def create(self, path: Path) -> int:
        """Opens an empty file for writing, in place of one that may be there."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def write(self, descriptor: int, data: memoryview) -> None:
        """Appends all of `data`, which is made of bytes."""
        while data.nbytes:
            data = data[os.write(descriptor, data) :]

    def sync(self, descriptor: int) -> None:
        """Returns when the content is on disk."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Closes what `create` opened."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Gives a file its name, in place of one that may have it."""
        source.replace(target)

    def sync_folder(self, path: Path) -> None:
        """Returns when the names in `path` are on disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Removes a file."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Removes an empty folder."""
        path.rmdir()

    def lock(self, path: Path, text: bytes) -> Lock | None:
        """Makes `path` the lock of this process, and writes `text` into it; None: another process has it.

        A lock of fcntl: forked children do not inherit it, and NFS has it.  This process itself is never refused.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, text)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return None
            raise
        return Lock(descriptor)

    def names(self, path: Path) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""
        try:
            return sorted(child.name for child in path.iterdir())
        except FileNotFoundError:
            return []

    def size(self, path: Path) -> int:
        """The bytes of a file."""
        return path.stat().st_size

    def read(self, path: Path, start: int, into: memoryview) -> int:
        """Fills `into` from byte `start` on; returns how many bytes the file had for it."""
        done = 0
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            while done < into.nbytes:
                count = file.readinto(into[done:])
                if not count:
                    break
                done += count
        return done
