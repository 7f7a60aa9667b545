"""Where values lie that do not fit into memory: files of one rank, read and written by threads.

Each write goes to the older of two files, so a write that fails, as on a full disk, leaves the values before it.
Bytes skip the page cache of the system (O_DIRECT) where the file system allows it: values on disk would otherwise take
the memory that they are to save.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import socket
import weakref
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from rabit.errors import IntegrityError, InvalidArgument, ResourceExhausted

__all__ = ["DiskTier"]

Array = np.ndarray[Any, Any]
_OWNER = "owner.json"
_THREADS = 2  # one reads while the other writes
_DIRECT = getattr(os, "O_DIRECT", 0)
SECTOR = 4096  # that memory, places and lengths of O_DIRECT are multiples of


@dataclass
class _Slot:
    """Two files of one key: `current` holds its values, of this size and checksum. what: they are, for errors."""

    what: str
    current: int = 0
    size: int = 0
    checksum: int = 0
    last: Future[None] | None = None  # write


class DiskTier:
    """Values of one rank, as files in `folder`, which is made and removed again by `close`.

    job: an identifier; a folder that is there already belongs to another job, and is refused with InvalidArgument.
    budget: bytes of the files, both of each key; None: what is free on the disk. One thread calls its methods.
    `is_direct`: whether bytes skip the page cache.
    """

    def __init__(self, folder: str | Path, job: str, budget: int | None = None) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True)
        except FileExistsError:
            raise InvalidArgument(_refusal(self.folder, job)) from None
        except OSError as error:
            raise InvalidArgument(f"the folder {self.folder} cannot be made: {error}") from error
        owner = {"job": job, "host": socket.gethostname(), "process": os.getpid()}
        (self.folder / _OWNER).write_text(json.dumps(owner))
        self.is_direct = _skips_page_cache(self.folder)
        self.budget = shutil.disk_usage(self.folder).free if budget is None else budget
        self.bytes = 0  # of the files
        self._slots: dict[str, _Slot] = {}
        self._free: list[Any] = []
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="rabit disk")
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def buffer(self, count: int) -> Array:
        """Memory for `count` bytes to write or read: uint8, at least that long, with any values.

        It is used again when nothing refers to the array that was returned; a view in NumPy alone does not count.
        """
        size = -(-count // SECTOR) * SECTOR
        fitting = [memory for memory in self._free if len(memory) == size]
        if fitting:
            memory = fitting[0]
            self._free[:] = [other for other in self._free if other is not memory]
        else:
            del self._free[:1]  # Sizes settle after the first step; until then another one makes room.
            memory = mmap.mmap(-1, size) if size else bytearray()
        found: Array = np.frombuffer(memory, np.uint8)
        weakref.finalize(found, self._free.append, memory).atexit = False
        return found

    def write(self, key: str, values: Array, what: str = "state on disk") -> Future[None]:
        """Starts to write `values`, from `buffer`, as those of `key`; they must not change before it is done.

        what: the values are, for errors. The future raises OSError. Raises ResourceExhausted if the budget is too
        small for them.
        """
        slot = self._slots.setdefault(key, _Slot(what))
        more = 2 * (len(values) - slot.size)
        if self.bytes + more > self.budget:
            raise ResourceExhausted(
                f"{slot.what}: {key!r} needs {more:,} bytes more in {self.folder}, where {self.bytes:,} of "
                f"{self.budget:,} are taken. Use a larger disk, or more ranks"
            )
        self.bytes += more
        slot.size = len(values)
        slot.last = self._threads.submit(self._write, slot, key, values, slot.last)
        return slot.last

    def read(self, key: str, values: Array) -> Future[None]:
        """Starts to read those of `key` into `values`, from `buffer`, after the last write of it.

        The future raises OSError, or IntegrityError where the file differs from what was written.
        """
        slot = self._slots[key]
        return self._threads.submit(self._read, slot, key, values, slot.last)

    def size(self, key: str) -> int:
        """Bytes of the values of `key`; 0 before its first write."""
        return self._slots[key].size if key in self._slots else 0

    def close(self) -> None:
        """Removes the files. Blocks until none is read or written."""
        self._threads.shutdown()
        self._finalizer()

    def path(self, key: str, place: int) -> Path:
        """One of the two files of `key`."""
        return self.folder / f"{key}.{place}"

    def _write(self, slot: _Slot, key: str, values: Array, before: Future[None] | None) -> None:
        if before is not None:
            before.exception()  # The caller has it; the older values are those to keep.
        place = 1 - slot.current
        checksum = _checksum(values)
        with self._opened(slot, self.path(key, place), os.O_WRONLY | os.O_CREAT) as file:
            view = memoryview(cast("Any", values))
            done = 0
            while done < len(view):
                done += os.pwrite(file, view[done:], done)
            os.ftruncate(file, len(view))
            self._let_go_pages(file)
        slot.checksum = checksum
        slot.current = place

    def _read(self, slot: _Slot, key: str, values: Array, before: Future[None] | None) -> None:
        if before is not None:
            before.result()
        path = self.path(key, slot.current)
        with self._opened(slot, path, os.O_RDONLY) as file:
            view = memoryview(cast("Any", values))
            done = 0
            while done < len(view) and (count := os.preadv(file, [view[done:]], done)):
                done += count
            self._let_go_pages(file)
        if done < len(view) or _checksum(values) != slot.checksum:
            raise IntegrityError(
                f"{slot.what}: {path} differs from what was written ({done:,} of {len(view):,} bytes read). "
                "Check the disk, and continue from the last checkpoint"
            )

    @contextlib.contextmanager
    def _opened(self, slot: _Slot, path: Path, flags: int) -> Iterator[int]:
        try:
            file = os.open(path, flags | (_DIRECT if self.is_direct else 0), 0o600)
            try:
                yield file
            finally:
                os.close(file)
        except OSError as error:
            done = "read" if flags == os.O_RDONLY else "written"
            raise OSError(
                error.errno,
                f"{slot.what}: {path} cannot be {done}: {error.strerror}. Check the disk and its free space, and load "
                "the last checkpoint on every rank, into the model and the optimizer, or start again from it",
            ) from error

    def _let_go_pages(self, file: int) -> None:
        """What was read or written through the page cache is not read soon: its pages are free for others."""
        if not self.is_direct:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _skips_page_cache(folder: Path) -> bool:
    """Whether a file in `folder` can be written with O_DIRECT; tmpfs and some others have it not."""
    path = folder / "direct"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | _DIRECT, 0o600)
        try:
            return bool(_DIRECT) and os.pwrite(file, mmap.mmap(-1, SECTOR), 0) == SECTOR
        finally:
            os.close(file)
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)


def _checksum(values: Array) -> int:
    """Of the sums of all sectors, in order: a sector that is old, elsewhere or changed gives another one."""
    sums = values.view(np.uint64).reshape(-1, SECTOR // 8).sum(axis=1, dtype=np.uint64)
    return zlib.crc32(sums)


def _refusal(folder: Path, job: str) -> str:
    """Why a folder that is there is not used."""
    owner: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        owner = json.loads((folder / _OWNER).read_text())
    whose = (
        f"belongs to job {owner['job']} (process {owner['process']} on {owner['host']}), and this is job {job}"
        if owner
        else "exists and was not made for values on disk"
    )
    return (
        f"offload: the folder {folder} {whose}. Give each job a folder of its own; remove this one if that job "
        "has ended"
    )
