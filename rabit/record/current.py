"""The records of this process: one for each engine that runs, used again by the next one."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from rabit.errors import InvalidArgument
from rabit.record.places import FOLDER_VARIABLE, own_folder, remove_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rabit.record.file import RecordFile

__all__ = ["mark", "open_record"]

_OFF = ("0", "off", "false", "no")
_ON = ("", "1", "on", "true", "yes")
_SHORTEST_PAUSE_NS = 10_000_000  # of the garbage collector, that is worth a mark


class _Records:
    """Of one process; a forked child has none."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.files: list[RecordFile] = []
        self.own = ""  # a folder that this process removes
        self.place = 0, 1  # rank and size of the first engine, which is the job's
        self.collecting_ns = 0


_records = _Records()


def open_record(
    where: str, rank: int, facts: dict[str, Any], environ: Mapping[str, str]
) -> RecordFile | None:
    """The record of an engine of this process; None if there is to be none.

    where: the setting: "0": none; "": one that goes with the job; else a folder that keeps it.
    Raises InvalidArgument for a folder that cannot be written.
    """
    global _records
    if where.lower() in _OFF:
        return None
    if _records.pid != os.getpid():
        _records = _Records()
    folder = _folder(where, environ)
    if not folder:
        return None
    for number, file in enumerate(_records.files):
        if not file.is_used and file.path.startswith(f"{folder}/"):
            file.is_used = True
            file.describe(**{**facts, **_place_of(number, rank, facts["size"])})
            return file
    from rabit.record.file import RecordFile

    number = len(_records.files)
    place = _place_of(number, rank, facts["size"])
    path = f"{folder}/rank-{place['rank']}{f'.engine{number + 1}' if number else ''}.rabit"
    try:
        own = {**place, "engine": number + 1, "tasks": _tasks(environ)}
        file = RecordFile(path, {**facts, **own})
    except InvalidArgument:
        if where.lower() not in _ON:
            raise
        return None  # The user did not ask for it: a full disk or a limit of the process must not end the job.
    _records.files.append(file)
    if not number:
        gc.callbacks.append(_watch_collector)
    return file


def _place_of(number: int, rank: int, size: int) -> dict[str, Any]:
    """Rank and size of the job: of the first engine, if this one has another size and so is that of a group."""
    if number == 0:
        _records.place = rank, size
    if size == _records.place[1]:
        return {"rank": rank, "size": size, "group": ""}
    return {"rank": _records.place[0], "size": _records.place[1], "group": f"rank {rank} of {size}"}


def _tasks(environ: Mapping[str, str]) -> int:
    """How many a scheduler was asked for that has not started this process as one of several; 0: nobody asked."""
    given = "" if "RABIT_RANK" in environ else environ.get("SLURM_NTASKS", "")
    return int(given) if given.isdigit() else 0


def mark(text: str, duration_s: float = 0.0) -> None:
    """Writes a mark into the first record of this process, if it has one."""
    if _records.files and _records.pid == os.getpid():
        _records.files[0].mark(text, int(duration_s * 1e9))


def _folder(where: str, environ: Mapping[str, str]) -> str:
    if where.lower() not in _ON:
        try:
            os.makedirs(where, exist_ok=True)  # noqa: PTH103
        except OSError as error:
            raise InvalidArgument(
                f"the folder {where} for records cannot be made: {error.strerror}. Name another one (RABIT_RECORD, "
                "--record), or set RABIT_RECORD=0."
            ) from error
        return where
    given = environ.get(FOLDER_VARIABLE, "")
    if given and os.path.isdir(given):  # noqa: PTH112
        return given
    if not _records.own:
        try:
            _records.own = own_folder("process", environ)
        except OSError:
            return ""  # A system without a folder for temporary files: the job runs all the same.
        atexit.register(_remove_own)
    return _records.own


def _remove_own() -> None:
    """What belongs to a process that ends well goes with it."""
    folder = _records.own
    if (
        not folder
        or _records.pid != os.getpid()
        or getattr(sys, "last_value", None) is not None
    ):
        return
    remove_folder(folder)


def _watch_collector(phase: str, found: dict[str, int]) -> None:
    now_ns = time.monotonic_ns()
    if phase == "start":
        _records.collecting_ns = now_ns
        return
    took_ns = now_ns - _records.collecting_ns
    if took_ns < _SHORTEST_PAUSE_NS or not _records.collecting_ns or _records.pid != os.getpid():
        return
    for file in _records.files[:1]:
        file.count("gc_ns", took_ns)
        file.mark(f"gc generation {found.get('generation', 0)}", took_ns, now_ns)
