"""CrashDisk: a disk in memory that can lose power, or fail, at any operation.

It knows what a real one may forget: content that was not synced, and names in folders that were not.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

from rabit.checkpoint.files import Files, Lock


class PowerLost(BaseException):
    """The process ends here; nothing may catch it for good."""


@dataclass
class Inode:
    """A file: what it holds, and what of it survives for sure."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class CrashDisk:
    """The disk that the `DiskOfRank` of all ranks look at."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.names: dict[Path, Inode] = {}
        self.synced: dict[Path, Inode] = {}
        self.folders: set[Path] = set()
        self.open: dict[int, Inode] = {}
        self.descriptors = itertools.count(3)

    def after_crash(self, survives: str, seed: int = 0) -> CrashDisk:
        """The disk as the next job finds it.

        survives: of what was not synced: "all", as when a process is killed; "none"; or "some", by
        chance, as when power is lost.
        """
        chance = random.Random(seed)
        found = CrashDisk()
        found.folders = set(self.folders)
        for path in sorted({*self.names, *self.synced}):
            now, before = self.names.get(path), self.synced.get(path)
            keeps_now = survives == "all" or (survives == "some" and chance.random() < 0.5)
            inode = now if keeps_now or now is before else before
            if inode is not None:
                content = self._content(inode, survives, chance)
                found.names[path] = found.synced[path] = Inode(bytearray(content), content)
        return found

    @staticmethod
    def _content(inode: Inode, survives: str, chance: random.Random) -> bytes:
        if survives == "all" or bytes(inode.content) == inode.synced:
            return bytes(inode.content)
        if survives == "none":
            return inode.synced
        # Blocks arrive in any order; what did not reads as zeros.
        content = bytearray(inode.content)
        for at in range(0, len(content), 64):
            if chance.random() < 0.5:
                content[at : at + 64] = bytes(len(content[at : at + 64]))
        return bytes(content[: chance.randrange(len(content) + 1)])


class DiskOfRank(Files):
    """One rank's view of a CrashDisk.

    dies_at: the number of the operation before which it dies.  fails_at: of the one that answers
    with `error`.  operations: how many there have been.
    """

    def __init__(
        self, disk: CrashDisk, *, dies_at: int = 0, fails_at: int = 0, error: int = errno.ENOSPC
    ) -> None:
        self.disk = disk
        self.dies_at = dies_at
        self.fails_at = fails_at
        self.error = error
        self.operations = 0

    def _begin(self) -> None:
        self.operations += 1
        if self.dies_at and self.operations >= self.dies_at:
            raise PowerLost
        if self.operations == self.fails_at:
            raise OSError(self.error, errno.errorcode[self.error])

    def make_folder(self, path: Path) -> None:
        with self.disk.lock:
            self._begin()
            self.disk.folders.update((path, *path.parents))

    def create(self, path: Path) -> int:
        with self.disk.lock:
            self._begin()
            if path.parent not in self.disk.folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
            inode = self.disk.names[path] = Inode()
            descriptor = next(self.disk.descriptors)
            self.disk.open[descriptor] = inode
            return descriptor

    def write(self, descriptor: int, data: memoryview) -> None:
        with self.disk.lock:
            self._begin()
            self.disk.open[descriptor].content += data

    def sync(self, descriptor: int) -> None:
        with self.disk.lock:
            self._begin()
            inode = self.disk.open[descriptor]
            inode.synced = bytes(inode.content)

    def close(self, descriptor: int) -> None:
        with self.disk.lock:
            self._begin()
            del self.disk.open[descriptor]

    def lock(self, path: Path, text: bytes) -> Lock:
        with self.disk.lock:
            self._begin()
            return Lock(os.dup(0))

    def rename(self, source: Path, target: Path) -> None:
        with self.disk.lock:
            self._begin()
            self.disk.names[target] = self.disk.names.pop(source)

    def sync_folder(self, path: Path) -> None:
        with self.disk.lock:
            self._begin()
            for each in [each for each in self.disk.synced if each.parent == path]:
                del self.disk.synced[each]
            now = {each: inode for each, inode in self.disk.names.items() if each.parent == path}
            self.disk.synced.update(now)

    def remove(self, path: Path) -> None:
        with self.disk.lock:
            self._begin()
            if path not in self.disk.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            del self.disk.names[path]

    def remove_folder(self, path: Path) -> None:
        with self.disk.lock:
            self._begin()
            if any(each.parent == path for each in self.disk.names):
                raise OSError(errno.ENOTEMPTY, "not empty", str(path))
            self.disk.folders.discard(path)
            for each in [each for each in self.disk.synced if each.parent == path]:
                del self.disk.synced[each]

    def names(self, path: Path) -> list[str]:
        with self.disk.lock:
            self._begin()
            inside = [*self.disk.names, *self.disk.folders]
            return sorted({each.name for each in inside if each.parent == path and each != path})

    def size(self, path: Path) -> int:
        with self.disk.lock:
            self._begin()
            return len(self._inode(path).content)

    def read(self, path: Path, start: int, into: memoryview) -> int:
        with self.disk.lock:
            self._begin()
            found = self._inode(path).content[start : start + into.nbytes]
            into[: len(found)] = bytes(found)
            return len(found)

    def _inode(self, path: Path) -> Inode:
        if path not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return self.disk.names[path]
