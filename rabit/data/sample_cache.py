"""CacheLoader: samples that are costly to make, kept in a file that all processes of a host share."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from rabit.data.cache_file import CacheFile
from rabit.errors import InvalidArgument

__all__ = ["CacheLoader", "CacheStatistics"]


@dataclass
class CacheStatistics:
    """What a thread of a process has had of a cache.

    hits, misses: samples that were there, and that were made.  left_out: made and not kept, since the
    cache is full or could not be written.
    """

    hits: int = 0
    misses: int = 0
    left_out: int = 0


class CacheLoader:
    """Samples by key: made by a function at their first use, then taken from a file of this host.

    All ranks of the host that name the same folder share what is in it, and so do the workers of their
    data loaders and later jobs.

    folder: on this host: a disk, or a folder of its own below /dev/shm for memory.  It is made if it is not
    there.  It must belong to this user and be writable for no one else, as reading a pickle runs code.
    name: of the data set and of how its samples are made: another way to make them needs another name.
    capacity_bytes: of all samples in the folder.  When it is reached, what is there stays, and other samples are
    made each time: an epoch uses every sample once, so that replacing some would lose as many hits.
    writer_buffer_size: samples that are written together.  Those that are not written yet are known to
    the thread that made them; `flush` writes them, and so does the end of the thread, of this object or of the process.

    May be used by any thread, and by processes that were forked, or got it as a pickle.
    Does not block, except for the disk and for at most two seconds while others write; what cannot be
    written then is left out, with a warning.  Raises InvalidArgument for a folder of others, and for a damaged file.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        name: str,
        capacity_bytes: int = 8 << 30,
        writer_buffer_size: int = 20,
    ) -> None:
        if capacity_bytes < 1 or writer_buffer_size < 1:
            raise InvalidArgument(
                f"capacity_bytes is {capacity_bytes} and writer_buffer_size {writer_buffer_size}; give 1 or "
                "more for each."
            )
        self.folder = Path(folder)
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.writer_buffer_size = writer_buffer_size
        self._here = threading.local()
        CacheFile(self.folder, capacity_bytes).close()  # Here, where the error is seen at once.

    def get(self, key: int | str, load_fn: Callable[[Any], Any]) -> Any:
        """The sample of `key`; of load_fn(key), if it is not there."""
        mine = self._mine()
        data = mine.waiting.get(key)
        if data is None:
            data = mine.file.read(self.name, key)
        if data is not None:
            mine.statistics.hits += 1
            return pickle.loads(data)
        mine.statistics.misses += 1
        sample = load_fn(key)
        if mine.file.is_full:
            mine.statistics.left_out += 1
            return sample
        mine.waiting[key] = pickle.dumps(sample, pickle.HIGHEST_PROTOCOL)
        if len(mine.waiting) >= self.writer_buffer_size:
            mine.write()
        return sample

    def num_keys(self) -> int:
        """How many samples are in the folder, of all names, after a `flush`."""
        self.flush()
        return self._mine().file.count()

    def flush(self) -> None:
        """Writes what this thread has made."""
        self._mine().write()

    def statistics(self) -> CacheStatistics:
        """Of this thread of this process."""
        return self._mine().statistics

    def _mine(self) -> _OfThread:
        """What belongs to this thread: nothing of a file's connection may cross a fork."""
        found: _OfThread | None = getattr(self._here, "value", None)
        if found is None or found.process != os.getpid():
            if found is not None:
                _of_parents.append(found)
            found = self._here.value = _OfThread(self.name, CacheFile(self.folder, self.capacity_bytes))
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_here"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._here = threading.local()


# Connections that a fork has copied: to close them would take locks from the parent.
_of_parents: list[Any] = []


class _OfThread:
    """The connection of one thread, and the samples that it has made and not written."""

    def __init__(self, name: str, file: CacheFile) -> None:
        self.process = os.getpid()
        self.file = file
        self.waiting: dict[int | str, bytes] = {}
        self.statistics = CacheStatistics()
        self._name = name
        # When the thread, the cache or the process ends; workers of data loaders end their process that way.
        Finalize(self, _end, args=(file, name, self.waiting), exitpriority=10)

    def write(self) -> None:
        self.statistics.left_out += self.file.write(self._name, self.waiting)
        self.waiting.clear()


def _end(file: CacheFile, name: str, waiting: dict[int | str, bytes]) -> None:
    file.write(name, waiting)
    file.close()
