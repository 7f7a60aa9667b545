"""Sampler: writes once a second into the records of a host's ranks how their processes and the host do."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from rabit.diagnostics.look.process import host_facts, process_facts
from rabit.errors import InvalidArgument
from rabit.record import layout
from rabit.record.reader import read_counters

__all__ = ["Sampler"]

# Names of the kernel's numbers that a sample has under others.
_HOST_NAMES = {"nr_throttled": "throttled", "oom_kill": "oom_kills"}


class Sampler:
    """One thread only.  It is the one writer of the samples of these records."""

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}
        self._numbers: dict[Path, int] = {}

    def sample(self, path: Path, own: set[int]) -> dict[str, int]:
        """Adds a sample to the record at `path`; its counters, and "rank".  own: processes of the job."""
        try:
            record = read_counters(path)
            data = self._map(path)
        except (InvalidArgument, OSError, ValueError):
            return {}
        pid = int(record.header.get("pid", 0))
        facts = process_facts(pid)
        if facts and facts["start_ticks"] == record.header.get("start_ticks"):
            self._write(path, data, facts)
        return {**record.counters, "rank": record.rank}

    def _write(self, path: Path, data: mmap.mmap, facts: dict[str, Any]) -> None:
        host = {
            _HOST_NAMES.get(name, name): value
            for name, value in host_facts(set(), with_others=False).items()
        }
        number = self._numbers.get(path, 0) + 1
        self._numbers[path] = number
        found = {**host, **facts, "number": number, "state": ord(facts["state"][0])}
        values = [int(found.get(name, 0)) for name in layout.SAMPLE_FIELDS]
        values += [0] * (32 - len(values))
        _put(
            data,
            layout.SAMPLES_AT + number % layout.SAMPLES * layout.SAMPLE.size,
            layout.SAMPLE.pack(*values),
        )

    def _map(self, path: Path) -> mmap.mmap:
        found = self._maps.get(path)
        if found is None:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                found = self._maps[path] = mmap.mmap(descriptor, layout.FILE_BYTES)
            finally:
                os.close(descriptor)
        return found

    def close(self) -> None:
        for each in self._maps.values():
            each.close()


def _put(data: mmap.mmap, at: int, entry: bytes) -> None:
    """An entry whose number is 0 while it is written."""
    data[at : at + 8] = bytes(8)
    data[at + 8 : at + len(entry)] = entry[8:]
    data[at : at + 8] = entry[:8]
