"""Records in the formats of others: one Chrome trace of all ranks, and dumps for torch's flight-recorder tool."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rabit.record.reader import Operation, Record

__all__ = ["chrome_trace", "clock_offsets", "flight_recorder_dump"]


def clock_offsets(records: Mapping[int, Record]) -> dict[int, int]:
    """By rank: nanoseconds to take from its times to get those of the first rank's clock.

    Ranks of one boot of one host have one clock.  Others learn of an agreement within a message's time of each other:
    the median over all agreements leaves an error of about half a round trip.
    """
    if not records:
        return {}
    first = min(records)
    agreed = {
        (operation.epoch, operation.round): operation.agreed_ns
        for operation in records[first].operations
        if operation.round
    }
    found = {}
    for rank, record in records.items():
        if record.header.get("boot") == records[first].header.get("boot"):
            found[rank] = 0
            continue
        gaps = [
            operation.agreed_ns - agreed[operation.epoch, operation.round]
            for operation in record.operations
            if (operation.epoch, operation.round) in agreed
        ]
        offset = [record.header.get("monotonic_ns", 0) - record.header.get("realtime_ns", 0)]
        base = records[first].header.get("monotonic_ns", 0) - records[first].header.get(
            "realtime_ns", 0
        )
        found[rank] = int(statistics.median(gaps)) if gaps else int(offset[0] - base)
    return found


def chrome_trace(records: Mapping[int, Record]) -> list[dict[str, Any]]:
    """Events of Chrome's trace format, one process for each rank; times begin with the first event."""
    offsets = clock_offsets(records)
    starts = [
        operation.submitted_ns - offsets[rank]
        for rank, record in records.items()
        for operation in record.operations
    ] + [
        mark.end_ns - mark.duration_ns - offsets[rank]
        for rank, record in records.items()
        for mark in record.marks
    ]
    origin = min(starts, default=0)
    events: list[dict[str, Any]] = []
    for rank, record in sorted(records.items()):
        name = f"rank {rank} ({record.header.get('host', '')})"
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        )
        zero = origin + offsets[rank]
        rows: dict[str, int] = {"marks": 0}
        for operation in record.operations:
            row = rows.setdefault(f"{operation.kind}.{operation.name}", len(rows))
            events += _spans(operation, rank, row, zero)
        for mark in record.marks:
            begin = mark.end_ns - mark.duration_ns - zero
            span = (
                {"ph": "X", "dur": mark.duration_ns / 1e3}
                if mark.duration_ns
                else {"ph": "i", "s": "p"}
            )
            events.append(
                {
                    "name": mark.text,
                    "pid": rank,
                    "tid": 0,
                    "ts": begin / 1e3,
                    **span,
                    "args": {"step": mark.step},
                }
            )
        for row_name, number in rows.items():
            events.append(
                {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": rank,
                    "tid": number,
                    "args": {"name": row_name},
                }
            )
    return events


def _spans(operation: Operation, rank: int, row: int, zero: int) -> list[dict[str, Any]]:
    """Of one operation: until it is agreed, until it starts, and the exchange."""
    points = [
        ("NEGOTIATE", operation.submitted_ns, operation.agreed_ns),
        ("QUEUE", operation.agreed_ns, operation.started_ns),
        (
            operation.kind.upper(),
            operation.started_ns or operation.agreed_ns,
            operation.finished_ns,
        ),
    ]
    arguments = {
        "elements": operation.elements,
        "dtype": operation.dtype,
        "backend": operation.backend,
        "algorithm": operation.algorithm or "inline",
        "state": operation.state,
        "round": operation.round,
    }
    return [
        {
            "ph": "X",
            "name": name,
            "pid": rank,
            "tid": row,
            "ts": (begin - zero) / 1e3,
            "dur": (end - begin) / 1e3,
            "args": arguments,
        }
        for name, begin, end in points
        if begin and end >= begin
    ]


_TORCH_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
_TORCH_TYPES = {
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "bfloat16": "BFloat16",
    "int32": "Int",
    "int64": "Long",
}
_TORCH_STATES = {"open": "scheduled", "done": "completed", "failed": "completed"}


def flight_recorder_dump(record: Record, members: Sequence[int], prefix: str) -> dict[str, Any]:
    """What torch's analyser reads of one rank: the operations of all ranks in the order of their agreement.

    members: the ranks of the job.  prefix: a backend's name that the analyser knows: "nccl", or "gloo" from torch
    2.14 on.  Messages and operations of other groups are left out: their order is not one over all ranks.
    """
    own = [operation for operation in record.operations if operation.kind in _TORCH_NAMES and operation.group == 0]
    newest = max((each.epoch for each in own), default=0)
    own = [each for each in own if each.epoch == newest]
    agreed = sorted((each for each in own if each.round), key=lambda each: each.round)
    entries = []
    for number, each in enumerate([*agreed, *(each for each in own if not each.round)]):
        sizes = [[each.elements]]
        kind = _TORCH_TYPES.get(each.dtype, each.dtype)
        entries.append(
            {
                "record_id": number,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": number + 1,
                "p2p_seq_id": 0,
                "op_id": number + 1,
                "profiling_name": f"{prefix}:{_TORCH_NAMES[each.kind]}",
                "time_created_ns": each.submitted_ns,
                "time_discovered_started_ns": each.started_ns or None,
                "time_discovered_completed_ns": each.finished_ns or None,
                "duration_ms": (each.finished_ns - each.submitted_ns) / 1e6
                if each.finished_ns
                else None,
                "input_sizes": sizes,
                "output_sizes": sizes,
                "input_dtypes": [kind],
                "output_dtypes": [kind],
                "state": "started"
                if each.started_ns and not each.finished_ns
                else _TORCH_STATES[each.state],
                "retired": each.state != "open",
                "timeout_ms": 0,
                "is_p2p": False,
                "frames": [{"name": each.name, "filename": "rabit", "line": 0}],
            }
        )
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(members))}
    return {"version": "2.10", "pg_config": {"0": group}, "pg_status": {}, "entries": entries}
