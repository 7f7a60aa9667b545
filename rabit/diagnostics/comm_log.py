"""Adds up the logs of all ranks (RABIT_COMM_LOG): what `rabitrun log` prints.

Of one operation every rank has a line with the time from submitting to finishing it. The shortest of
these is the communication: the rank that came last waited for nobody. What a rank took longer is
what it waited, for ranks that came later or for its own threads.
"""

from __future__ import annotations

import csv
import glob
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rabit.config.diagnostics import path_of_rank
from rabit.errors import InvalidArgument
from rabit.printable import printable

__all__ = ["CommLog", "Line", "add_up", "find_logs", "read_log", "summary_lines", "table_rows"]

_COLUMNS = ("name", "kind", "type", "group", "bytes", "begin_us", "us", "is_ok")


class Line(NamedTuple):
    """One operation of one rank.  microseconds: from submitting to finishing it."""

    name: str
    kind: str
    group: int
    bytes: int
    microseconds: float


@dataclass
class Row:
    """All operations of one kind and size.  waited: microseconds by rank."""

    count: int = 0
    microseconds: float = 0.0  # of communication
    times: list[float] = field(default_factory=list)
    waited: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))


@dataclass
class CommLog:
    """What the logs say together.  came_last: by rank, how often the others waited for it, and how
    long the longest of them did, added up."""

    ranks: tuple[int, ...]
    rows: dict[tuple[str, int], Row]
    came_last: Counter[int]
    waited_for: defaultdict[int, float]

    @property
    def microseconds(self) -> float:
        return sum(row.microseconds for row in self.rows.values())

    def waited(self, rank: int) -> float:
        """How long a rank waited for others, in microseconds."""
        return sum(row.waited[rank] for row in self.rows.values())


def add_up(logs: Mapping[int, Iterable[Line]]) -> CommLog:
    """The totals.  logs: by rank; the n-th line of a name is the n-th operation of that name."""
    operations: dict[tuple[str, str, int, int], dict[int, Line]] = {}
    for rank, lines in logs.items():
        seen: Counter[tuple[str, str, int]] = Counter()
        for line in lines:
            # Both ends of a message are operations of their own.
            key = (line.kind, line.name, line.group)
            seen[key] += 1
            operations.setdefault((*key, seen[key]), {})[rank] = line
    found = CommLog(tuple(sorted(logs)), {}, Counter(), defaultdict(float))
    for by_rank in operations.values():
        times = {rank: line.microseconds for rank, line in by_rank.items()}
        last = min(times, key=lambda rank: times[rank])
        shortest, longest = times[last], max(times.values())
        kind, size = by_rank[last].kind, max(line.bytes for line in by_rank.values())
        row = found.rows.setdefault((kind, size), Row())
        row.count += 1
        row.microseconds += shortest
        row.times.append(shortest)
        for rank, time in times.items():
            row.waited[rank] += time - shortest
        if longest > shortest:
            found.came_last[last] += 1
            found.waited_for[last] += longest - shortest
    return found


def table_rows(log: CommLog) -> list[dict[str, Any]]:
    """One row for each kind and size, for CSV."""
    return [
        {
            "kind": kind,
            "bytes": size,
            "count": row.count,
            "total_ms": row.microseconds / 1e3,
            "mean_us": row.microseconds / row.count,
            "p50_us": sorted(row.times)[(row.count - 1) // 2],
            "p95_us": sorted(row.times)[-(-95 * row.count // 100) - 1],
            "algbw_gbps": size * row.count / row.microseconds / 1e3 if row.microseconds else 0.0,
            **{f"waited_ms_rank_{rank}": row.waited[rank] / 1e3 for rank in log.ranks},
        }
        for (kind, size), row in sorted(log.rows.items())
    ]


def summary_lines(log: CommLog) -> list[str]:
    """The table and the stragglers as text."""
    lines = [
        f"{'kind':<13} {'bytes':>12} {'count':>8} {'total ms':>11} {'mean us':>10} {'p50 us':>10} "
        f"{'p95 us':>10} {'algbw':>8} {'waited ms':>10}",
        f"{'':<72} {'':>10} {'GB/s':>8} {'mean rank':>10}",
    ]
    for row in table_rows(log):
        waited = sum(row[f"waited_ms_rank_{rank}"] for rank in log.ranks) / len(log.ranks)
        lines.append(
            f"{row['kind']:<13} {row['bytes']:>12} {row['count']:>8} {row['total_ms']:>11.3f} "
            f"{row['mean_us']:>10.1f} {row['p50_us']:>10.1f} {row['p95_us']:>10.1f} "
            f"{row['algbw_gbps']:>8.3f} {waited:>10.3f}"
        )
    total = sum(row.count for row in log.rows.values())
    lines.append(f"communication {log.microseconds / 1e3:.3f} ms in {total} operations")
    for rank in log.ranks:
        lines.append(
            f"rank {rank} waited {log.waited(rank) / 1e3:.3f} ms; it came last "
            f"{log.came_last[rank]} times, and others waited {log.waited_for[rank] / 1e3:.3f} ms for it"
        )
    return lines


def find_logs(path: str) -> dict[int, Path]:
    """The files of all ranks that RABIT_COMM_LOG=`path` has made, by rank."""
    pattern = re.compile(re.escape(path_of_rank(path, "\0")).replace("\0", r"(\d+)"))
    found = {}
    for name in glob.glob(glob.escape(path_of_rank(path, "\0")).replace("\0", "*")):  # noqa: PTH207
        match = pattern.fullmatch(name)
        if match:
            found[int(match.group(1))] = Path(name)
    if not found:
        raise InvalidArgument(
            f"there is no file {path_of_rank(path, 'N')} with the number of a rank for N. "
            f"Run the job with RABIT_COMM_LOG={path} here, or collect the files of its hosts."
        )
    missing = sorted(set(range(max(found))) - set(found))
    if missing:
        raise InvalidArgument(
            f"{path_of_rank(path, missing[0])} is missing, and there is one of rank "
            f"{max(found)}. Collect the files of all ranks: without it every wait would be too short."
        )
    return dict(sorted(found.items()))


def read_log(path: Path) -> list[Line]:
    """The lines of one rank; of operations that failed there is nothing to add up."""
    try:
        with path.open(newline="") as file:
            return list(_lines(path, csv.reader(file)))
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}.") from error


def _lines(path: Path, rows: Iterable[Sequence[str]]) -> Iterable[Line]:
    for number, row in enumerate(rows, start=1):
        if number == 1 and tuple(row) == _COLUMNS:
            continue
        try:
            if number == 1 or row[0].startswith("# incomplete"):
                raise ValueError("the log is incomplete" if number > 1 else "this is not a log")
            name, kind, _, group, size, _, microseconds, is_ok = row
            if is_ok == "1":
                yield Line(name, printable(kind), int(group), int(size), float(microseconds))
        except (ValueError, IndexError) as error:
            raise InvalidArgument(
                f"{path}, line {number}: {error}. Record it again: what is missing "
                "would make the totals wrong."
            ) from error
