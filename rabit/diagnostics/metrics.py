"""Numbers of a rank for loggers and for Prometheus: both are made of the counters of its record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from rabit.engine.current import current_engine
from rabit.errors import Unsupported
from rabit.record import layout
from rabit.record.reader import Record
from rabit.version import __version__

__all__ = ["CONTENT_TYPE", "metrics", "metrics_of", "openmetrics"]

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def metrics() -> dict[str, float]:
    """The numbers of this rank as one flat dict, for any logger: `wandb.log(rabit.metrics())`.

    Keys begin with "rabit/".  Counts, bytes and seconds since the start never fall; "rabit/step_seconds" is the mean of
    all steps, "rabit/overlap_ratio" the share of communication that no caller waited for.  Takes some microseconds and
    never waits for the engine.  Raises Unsupported where RABIT_RECORD=0 has turned the record off.
    """
    record = current_engine().record
    if record is None:
        raise Unsupported(
            "rabit.metrics() reads the record of this rank, which RABIT_RECORD=0 has turned off. Unset it, or use "
            "rabit.statistics()."
        )
    return {f"rabit/{name}": value for name, value in metrics_of(record.counters()).items()}


def metrics_of(counters: Mapping[str, int]) -> dict[str, float]:
    """The same of the counters of any record, without the prefix."""
    communicating, both = counters["communicating_ns"], counters["both_ns"]
    timed_steps = counters["steps"] - 1
    return {
        "steps": float(counters["steps"]),
        "step_seconds": counters["step_ns"] / 1e9 / timed_steps if timed_steps > 0 else 0.0,
        "operations": float(counters["finished"]),
        "failed_operations": float(counters["failed"]),
        "queued_operations": float(
            max(0, counters["submitted"] - counters["finished"] - counters["failed"])
        ),
        "bytes": float(counters["bytes"]),
        "communication_seconds": communicating / 1e9,
        "blocked_seconds": counters["waiting_ns"] / 1e9,
        "negotiation_seconds": counters["negotiation_ns"] / 1e9,
        "overlap_ratio": 1.0 - both / communicating if communicating else 0.0,
        "computation_seconds": max(
            0, counters["step_ns"] - counters["waiting_ns"] - counters["loader_ns"]
        )
        / 1e9,
        "gc_seconds": counters["gc_ns"] / 1e9,
        "loader_seconds": counters["loader_ns"] / 1e9,
        "stall_reports": float(counters["stall_reports"]),
    }


# Name, type, help, and where a sample of a rank comes from; base units, and no label of a tensor.
_FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("steps", "counter", "Training steps."),
    ("step_seconds", "counter", "Seconds in training steps."),
    ("operations", "counter", "Operations that have ended, by kind."),
    ("failed_operations", "counter", "Operations that have failed."),
    ("bytes", "counter", "Bytes of operations, by kind."),
    ("communication_seconds", "counter", "Seconds in which at least one lane communicated."),
    ("blocked_seconds", "counter", "Seconds in which at least one caller waited."),
    ("negotiation_seconds", "counter", "Seconds from submission to agreement, of all operations."),
    (
        "computation_seconds",
        "gauge",
        "Seconds in steps in which no caller waited and no data was loaded.",
    ),
    ("gc_seconds", "counter", "Seconds in collector pauses of 10 ms and more."),
    ("loader_seconds", "counter", "Seconds that the program marked as waiting for data."),
    ("stall_reports", "counter", "Stall reports."),
    ("cpu_seconds", "counter", "Processor time."),
    ("cpu_wait_seconds", "counter", "Seconds in which threads were ready to run and had no core."),
    ("major_faults", "counter", "Page faults that read from storage."),
    ("overlap_ratio", "gauge", "Share of communication that no caller waited for."),
    ("queue_operations", "gauge", "Operations that are open."),
    (
        "last_progress_timestamp_seconds",
        "gauge",
        "When an operation last ended, seconds since 1970.",
    ),
    ("resident_bytes", "gauge", "Resident memory."),
    ("epoch", "gauge", "Number of the engine of an elastic job."),
    ("members", "gauge", "Ranks of the job."),
)


def openmetrics(records: Iterable[tuple[Record, Mapping[str, Any]]], job: str) -> str:
    """The text for Prometheus, of ranks of one host.

    records: each with what the kernel says of its process (process_facts), {} if that has ended.
    """
    rows = [(_labels(record, job), _values(record, facts), record) for record, facts in records]
    lines = ["# TYPE rabit info", "# HELP rabit Versions."]
    for labels, _, record in rows:
        python = record.header.get("versions", {}).get("python", "")
        lines.append(
            f'rabit_info{{{labels},version="{__version__}",python="{_escaped(python)}"}} 1'
        )
    for name, kind, text in _FAMILIES:
        lines += [f"# TYPE rabit_{name} {kind}", f"# HELP rabit_{name} {text}"]
        suffix = "_total" if kind == "counter" else ""
        for labels, values, record in rows:
            if name in ("operations", "bytes"):
                lines += _by_kind(name, labels, record)
            elif name in values:
                lines.append(f"rabit_{name}{suffix}{{{labels}}} {values[name]:.9g}")
    return "\n".join([*lines, "# EOF"]) + "\n"


def _values(record: Record, facts: Mapping[str, Any]) -> dict[str, float]:
    counters, header = record.counters, record.header
    found = metrics_of(counters)
    found["step_seconds"] = counters["step_ns"] / 1e9
    found["queue_operations"] = found.pop("queued_operations")
    found["members"] = float(header.get("size", 0))
    found["epoch"] = float(header.get("epoch", 0))
    if counters["last_progress_ns"]:
        found["last_progress_timestamp_seconds"] = (
            counters["last_progress_ns"] - time.monotonic_ns() + time.time_ns()
        ) / 1e9
    if facts:
        found["cpu_seconds"] = (facts["user_ms"] + facts["system_ms"]) / 1e3
        found["cpu_wait_seconds"] = facts.get("run_delay_ms", 0) / 1e3
        found["major_faults"] = float(facts["major_faults"])
        found["resident_bytes"] = float(facts["rss_bytes"])
    return found


def _by_kind(name: str, labels: str, record: Record) -> list[str]:
    found = ((kind, record.counters[f"{name}_{kind}"]) for kind in layout.KINDS)
    used = ((kind, count) for kind, count in found if record.counters[f"operations_{kind}"])
    return [f'rabit_{name}_total{{{labels},kind="{kind}"}} {count}' for kind, count in used]


def _labels(record: Record, job: str) -> str:
    host = _escaped(str(record.header.get("host", "")))
    engine = record.header.get("engine", 1)
    more = "" if engine == 1 else f',engine="{engine}"'
    return f'job="{_escaped(job)}",host="{host}",rank="{record.rank}"{more}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
