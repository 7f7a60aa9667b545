"""What a record says: read without the process that wrote it, whatever became of that."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rabit.errors import InvalidArgument
from rabit.record import layout

__all__ = ["Mark", "Operation", "Record", "find_records", "read_counters", "read_record"]


class Operation(NamedTuple):
    """One operation of a rank.  Times are nanoseconds of the host's monotonic clock; 0: it has not come to that."""

    name: str
    kind: str
    dtype: str
    elements: int
    group: int
    round: int  # of all agreed operations, equal on all ranks; 0: not agreed
    submitted_ns: int
    agreed_ns: int
    started_ns: int
    finished_ns: int
    state: str  # "open", "done" or "failed"
    backend: str
    algorithm: str
    lane: int
    epoch: int
    root: int
    priority: int


class Mark(NamedTuple):
    """Something that lasted until `end_ns`."""

    text: str
    end_ns: int
    duration_ns: int
    step: int


@dataclass
class Record:
    """One rank's."""

    header: dict[str, Any]
    counters: dict[str, int]
    operations: list[Operation] = field(default_factory=list)  # by the time of submission
    marks: list[Mark] = field(default_factory=list)  # by the time of their end
    samples: list[dict[str, int]] = field(default_factory=list)  # one a second

    @property
    def rank(self) -> int:
        return int(self.header.get("rank", -1))


def find_records(folder: Path) -> list[Path]:
    """The records in a folder and below it.  Raises InvalidArgument if there is none."""
    found = (
        sorted(folder.rglob("rank-*.rabit"))
        if folder.is_dir()
        else [folder]
        if folder.is_file()
        else []
    )
    if not found:
        raise InvalidArgument(
            f"there is no record in {folder}: no file rank-N.rabit. Run the job with --record FOLDER, and collect "
            "the folders of its hosts in one."
        )
    return found


def read_record(path: Path, last: int = layout.ENTRIES) -> Record:
    """The record at `path`, with at most the `last` operations.  Raises InvalidArgument if it is not a record."""
    with _opened(path) as data:
        texts = _Texts(data)
        operations = _operations(data, texts, last)
        return Record(
            _header(data, path),
            _counters(data),
            operations,
            list(_marks(data)),
            list(_samples(data)),
        )


def read_counters(path: Path) -> Record:
    """The header, the counters and the last samples alone: some hundred microseconds."""
    with _opened(path) as data:
        return Record(_header(data, path), _counters(data))


def _opened(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"the record {path} cannot be read: {error}. Name a file rank-N.rabit."
        ) from error
    magic, number, size, _ = layout.FIXED.unpack_from(data)
    if len(data) < layout.FILE_BYTES or magic != layout.MAGIC or number != layout.FORMAT:
        what = f"format {number}" if magic == layout.MAGIC else "another kind of file"
        data.close()
        raise InvalidArgument(
            f"{path} is not a record of format {layout.FORMAT}: it is {what}, of {size} bytes. Read it with the "
            "version of rabit that wrote it."
        )
    return data


def _header(data: mmap.mmap, path: Path) -> dict[str, Any]:
    slot = layout.FIXED.unpack_from(data)[3]
    if slot not in (1, 2):
        return {"path": str(path)}
    at = layout.SLOTS[slot - 1]
    length = min(int.from_bytes(data[at : at + 4], "little"), layout.SLOT_BYTES - 4)
    try:
        found = json.loads(data[at + 4 : at + 4 + length])
    except ValueError:
        return {"path": str(path)}
    return {**found, "path": str(path)} if isinstance(found, dict) else {"path": str(path)}


def _counters(data: mmap.mmap) -> dict[str, int]:
    return layout.counters_of(layout.COUNTERS.unpack_from(data, layout.COUNTERS_AT))


class _Texts:
    """The texts of a record by their places."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data[layout.TEXTS_AT : layout.TEXTS_AT + layout.TEXT_BYTES]
        self._known: dict[int, str] = {0: ""}

    def at(self, place: int) -> str:
        found = self._known.get(place)
        if found is None:
            length = int.from_bytes(self._data[place : place + 2], "little")
            found = self._data[place + 2 : place + 2 + length].decode(errors="replace")
            self._known[place] = found
        return found


_STATES = ("open", "done", "failed")


def _operations(data: mmap.mmap, texts: _Texts, last: int) -> list[Operation]:
    """Entries that hold still while they are read."""
    before = data[layout.ENTRIES_AT : layout.MARKS_AT]
    found = [each for each in layout.ENTRY.iter_unpack(before) if each[0]]
    again = struct.Struct("<Q")
    found = [
        each
        for each in found
        if again.unpack_from(
            data, layout.ENTRIES_AT + each[0] % layout.ENTRIES * layout.ENTRY.size
        )[0]
        == each[0]
    ]
    found.sort(key=lambda each: each[2])
    opened = [each for each in found[:-last] if each[14] == 0]
    return [_operation(each, texts) for each in (*opened, *found[-last:])]


def _operation(entry: tuple[int, ...], texts: _Texts) -> Operation:
    (_, number, submitted, agreed, started, finished, elements, suffix, name, algorithm, backend, group, kind, dtype,
     state, lane, epoch, root, priority) = entry  # fmt: skip
    text = texts.at(name) or "(no room for its name)"
    return Operation(
        f"{text}.{suffix}" if suffix >= 0 else text,
        _word(layout.KINDS, kind),
        _word(layout.DTYPES, dtype),
        elements,
        group,
        number,
        submitted,
        agreed,
        started,
        finished,
        _word(_STATES, state),
        texts.at(backend),
        texts.at(algorithm),
        lane,
        epoch,
        root,
        priority,
    )


def _word(words: tuple[str, ...], place: int) -> str:
    return words[place] if place < len(words) else f"number {place}"


def _marks(data: mmap.mmap) -> Iterator[Mark]:
    ring = data[layout.MARKS_AT : layout.SAMPLES_AT]
    for number, end, duration, step, text in sorted(layout.MARK.iter_unpack(ring)):
        if number:
            yield Mark(text.rstrip(b"\0").decode(errors="replace"), end, duration, step)


def _samples(data: mmap.mmap) -> Iterator[dict[str, int]]:
    ring = data[layout.SAMPLES_AT : layout.FILE_BYTES]
    for values in sorted(layout.SAMPLE.iter_unpack(ring)):
        if values[0]:
            yield dict(zip(layout.SAMPLE_FIELDS, values, strict=False))
