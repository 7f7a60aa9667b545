"""One look at the ranks of a host: their records, and of those that live their processes and stacks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rabit.diagnostics.look.links import links_of
from rabit.diagnostics.look.process import host_facts, process_facts, quick_state
from rabit.diagnostics.look.stacks import ask_for_stacks
from rabit.errors import InvalidArgument
from rabit.record.reader import Record, read_record

__all__ = ["look_at", "look_at_folder", "rank_document"]

# Of each rank: those that are open, and the last ones.
_LAST_OPERATIONS = 256
_LAST_MARKS = 128
_LAST_SAMPLES = 30


def look_at(
    paths: Iterable[Path], host: str, stacks: int = 1, interval_s: float = 0.3
) -> dict[str, Any]:
    """{"host": facts, "ranks": {"0": document}} of the records at `paths`, whose processes are of this host.

    stacks: how often each rank is asked for its stacks, spread over `interval_s`, in which processes and the host
    are looked at twice.  Blocks for that time, and for 0.6 s at most where a rank does not answer.
    """
    found = [record for record in map(_readable, paths) if record is not None]
    # Of several of a rank the last counts: of a process that lives, and of its first engine.
    alive = {record.header["path"]: _lives(record) for record in found}
    found.sort(key=lambda record: (alive[record.header["path"]], -record.header.get("engine", 1)))
    records = {record.rank: record for record in found}
    headers = {rank: record.header for rank, record in records.items() if alive[record.header["path"]]}
    pids = {rank: int(header["pid"]) for rank, header in headers.items()}
    own = set(pids.values()) | set(_children(pids.values()))
    before = {rank: process_facts(pid) for rank, pid in pids.items()}
    first = host_facts(own)
    answers: list[dict[int, tuple[list[dict[str, Any]], str]]] = []
    states: dict[int, list[list[str]]] = {rank: [] for rank in pids}
    links_before = links_of(pids.values())
    until = time.monotonic() + (interval_s if headers else 0.0)
    for left in range(stacks, 0, -1):
        for rank, pid in pids.items():
            states[rank].append(quick_state(pid))
        answers.append(ask_for_stacks(headers))
        time.sleep(max(0.0, until - time.monotonic()) / left)
    time.sleep(max(0.0, until - time.monotonic()))
    workers = _workers(pids)
    links = links_of(pids.values())
    documents = {}
    for rank, record in records.items():
        again = _readable(Path(record.header["path"])) or record
        documents[str(rank)] = {
            **rank_document(again),
            "host": host,
            "counters_before": record.counters,
            "before": before.get(rank, {}),
            "now": process_facts(pids[rank]) if rank in pids else {},
            "workers": workers.get(rank, []),
            "states": states.get(rank, []),
            "links_before": links_before.get(pids.get(rank, 0), []),
            "links": links.get(pids.get(rank, 0), []),
            "stacks": [answer[rank][0] for answer in answers if rank in answer],
            "no_stacks": next(
                (answer[rank][1] for answer in answers if rank in answer and answer[rank][1]), ""
            ),
        }
    return {"host": {**host_facts(own), "name": host, "before": first}, "ranks": documents}


def look_at_folder(paths: Sequence[Path]) -> dict[str, Any]:
    """The same of records whose processes have ended, of any hosts: {"hosts": {}, "ranks": ...}."""
    documents: dict[str, Any] = {}
    for path in paths:
        record = _readable(path)
        if record is None:
            continue
        key = str(record.rank)
        if (
            key not in documents
            or record.counters["last_progress_ns"] > documents[key]["counters"]["last_progress_ns"]
        ):
            documents[key] = {
                **rank_document(record),
                "host": str(record.header.get("host", "")),
                "before": {},
                "now": {},
                "workers": [],
                "states": [],
                "links_before": [],
                "links": [],
                "stacks": [],
                "no_stacks": "its process is not looked at",
            }
    return {"hosts": {}, "ranks": documents}


def rank_document(record: Record) -> dict[str, Any]:
    """A record as JSON has it, with its last operations, marks and samples."""
    kept = [
        operation
        for operation in record.operations[:-_LAST_OPERATIONS]
        if operation.state == "open"
    ]
    return {
        "header": record.header,
        "counters": record.counters,
        "operations": [each._asdict() for each in (*kept, *record.operations[-_LAST_OPERATIONS:])],
        "marks": [mark._asdict() for mark in record.marks[-_LAST_MARKS:]],
        "samples": record.samples[-_LAST_SAMPLES:],
    }


def _readable(path: Path) -> Record | None:
    try:
        return read_record(path, _LAST_OPERATIONS)
    except InvalidArgument:
        return None  # It is being made, or its process has ended well and taken it away.


def _lives(record: Record) -> bool:
    pid = int(record.header.get("pid", 0))
    facts = process_facts(pid) if pid else {}
    return (
        bool(facts)
        and facts["start_ticks"] == record.header.get("start_ticks")
        and facts["state"] != "Z"
    )


def _children(pids: Iterable[int]) -> list[int]:
    """All processes below these."""
    parents: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                words = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(words[1]), []).append(int(each.name))
    found: list[int] = []
    waiting = list(pids)
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _workers(pids: Mapping[int, int]) -> dict[int, list[dict[str, Any]]]:
    """Of each rank its children, such as the workers of a loader."""
    return {
        rank: [{"pid": pid, **process_facts(pid)} for pid in _children([own])[:16]]
        for rank, own in pids.items()
    }
