"""Where state lies that does not fit into memory: files of one rank, read and written by threads.

Each write goes to the older of two files, so a write that fails, as on a full disk, leaves the values before it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import weakref
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rabit.errors import IntegrityError, InvalidArgument, ResourceExhausted

__all__ = ["DiskTier"]

Array = np.ndarray[Any, Any]
_OWNER = "owner.json"
_THREADS = 2  # one reads while the other writes


@dataclass
class _Slot:
    """Two files of one key: `current` holds its values, of these sizes and checksums."""

    current: int = 0
    sizes: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    last: Future[None] | None = None  # write


class DiskTier:
    """Values of one rank, as files in `folder`, which is made and removed again by `close`.

    job: an identifier; a folder that is there already belongs to another job, and is refused with InvalidArgument.
    budget: bytes of the files, both of each key; None: what is free on the disk. One thread calls its methods.
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
        self.budget = shutil.disk_usage(self.folder).free if budget is None else budget
        self.bytes = 0  # of the files
        self._slots: dict[str, _Slot] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="rabit disk")
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def write(self, key: str, arrays: Sequence[Array]) -> Future[None]:
        """Starts to write contiguous `arrays` as the values of `key`; they must not change before it is done.

        The future raises OSError. Raises ResourceExhausted if the budget is too small for them.
        """
        slot = self._slots.setdefault(key, _Slot())
        sizes = [array.nbytes for array in arrays]
        more = 2 * (sum(sizes) - sum(slot.sizes))
        if self.bytes + more > self.budget:
            raise ResourceExhausted(
                f"state on disk: {key!r} needs {more:,} bytes more in {self.folder}, where {self.bytes:,} of "
                f"{self.budget:,} are taken. Use a larger disk, or more ranks"
            )
        self.bytes += more
        slot.sizes = sizes
        slot.last = self._threads.submit(self._write, slot, key, list(arrays), slot.last)
        return slot.last

    def read(self, key: str, arrays: Sequence[Array]) -> Future[None]:
        """Starts to read the values of `key` into contiguous `arrays`, after the last write of it.

        The future raises OSError, or IntegrityError where the file has other bytes than were written.
        """
        slot = self._slots[key]
        return self._threads.submit(self._read, slot, key, list(arrays), slot.last)

    def sizes(self, key: str) -> list[int]:
        """Bytes of each array of `key`; none before its first write."""
        return self._slots[key].sizes if key in self._slots else []

    def close(self) -> None:
        """Removes the files. Blocks until none is read or written."""
        self._threads.shutdown()
        self._finalizer()

    def path(self, key: str, place: int) -> Path:
        """One of the two files of `key`."""
        return self.folder / f"{key}.{place}"

    def _write(self, slot: _Slot, key: str, arrays: list[Array], before: Future[None] | None) -> None:
        if before is not None:
            before.exception()  # The caller has it; the older values are those to keep.
        place = 1 - slot.current
        with self.path(key, place).open("wb", buffering=0) as file:
            for array in arrays:
                _write_all(file.fileno(), _bytes_of(array))
            _let_go_pages(file.fileno())
        slot.checksums = [zlib.crc32(_bytes_of(array)) for array in arrays]
        slot.current = place

    def _read(self, slot: _Slot, key: str, arrays: list[Array], before: Future[None] | None) -> None:
        if before is not None:
            before.result()
        path = self.path(key, slot.current)
        with path.open("rb", buffering=0) as file:
            for number, array in enumerate(arrays):
                view = _bytes_of(array)
                begin = 0
                while begin < len(view) and (count := file.readinto(view[begin:])):
                    begin += count
                if begin < len(view) or zlib.crc32(view) != slot.checksums[number]:
                    raise IntegrityError(
                        f"state on disk: {path} has other bytes than were written ({begin:,} of {len(view):,} read). "
                        "Check the disk, and continue from the last checkpoint"
                    )
            _let_go_pages(file.fileno())


def _refusal(folder: Path, job: str) -> str:
    """Why a folder that is there is not used."""
    owner: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        owner = json.loads((folder / _OWNER).read_text())
    whose = (
        f"belongs to job {owner['job']} (process {owner['process']} on {owner['host']}), and this is job {job}"
        if owner
        else "exists and was not made for state on disk"
    )
    return (
        f"state on disk: the folder {folder} {whose}. Give each job a folder of its own; remove this one if that job "
        "has ended"
    )


def _bytes_of(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _write_all(file: int, view: memoryview) -> None:
    while len(view):
        view = view[os.write(file, view) :]


def _let_go_pages(file: int) -> None:
    """What was read or written is not read soon: its pages are free for others."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
