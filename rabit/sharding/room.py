"""Whether what the ranks of a host are about to allocate fits into its memory."""

from __future__ import annotations

import resource
import zlib
from pathlib import Path

import numpy as np

from rabit.engine.current import current_engine
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.errors import ResourceExhausted
from rabit.ops.collectives import allgather

__all__ = ["check_room", "free_bytes"]

_CGROUPS = Path("/sys/fs/cgroup")


def check_room(
    what: str, need: int, advice: str, process_set: ProcessSet = global_process_set, name: str = "room"
) -> None:
    """Raises ResourceExhausted on every rank if the ranks of some host need more bytes together than it has free.

    what: that needs the memory; need: bytes of this rank; advice: a sentence on what to do. name: of the exchange.
    Blocks until every rank of `process_set` calls it. What is counted as free: MemAvailable of the host, or what the
    control group of this process has left, or RLIMIT_DATA, whichever is least.
    """
    key = zlib.crc32(current_engine().config.host_key.encode())
    here = np.array([[key, need, free_bytes(), _left_of_process()]], np.int64)
    rows = allgather(here, name, process_set).tolist()
    for host in dict.fromkeys(row[0] for row in rows):
        ranks = [place for place, row in enumerate(rows) if row[0] == host]
        total, free = sum(rows[rank][1] for rank in ranks), min(rows[rank][2] for rank in ranks)
        tight = [rank for rank in ranks if rows[rank][1] > rows[rank][3]]
        if total <= free and not tight:
            continue
        where = (
            f"the {len(ranks)} ranks of the host of rank {ranks[0]} need {total:,} bytes, and it has {free:,} free"
            if total > free
            else f"rank {tight[0]} needs {rows[tight[0]][1]:,} bytes, and its limit leaves {rows[tight[0]][3]:,}"
        )
        raise ResourceExhausted(f"{what}: {where}. Nothing has been allocated. {advice}")


def free_bytes() -> int:
    """Bytes that processes of this host, or of the control group of this one, may still allocate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(1024 * int(line.split()[1]), *_left_of_groups(), 1 << 62)
    return 1 << 62


def _left_of_groups() -> list[int]:
    """What each control group that limits memory has left; pages of files that it can drop count as free."""
    left = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base = _CGROUPS / controllers / path.lstrip("/")
        limit, used = ("memory.max", "memory.current") if not controllers else _FIRST_VERSION
        for group in (base, *base.parents):
            if not group.is_relative_to(_CGROUPS) or not (group / limit).is_file():
                continue
            text = (group / limit).read_text().strip()
            if text == "max":
                continue
            kept = dict(row.split() for row in (group / "memory.stat").read_text().splitlines())
            files = int(kept.get("total_inactive_file", kept.get("inactive_file", 0)))
            left.append(max(0, int(text) - int((group / used).read_text()) + files))
    return left


_FIRST_VERSION = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def _left_of_process() -> int:
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 62
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return max(0, limit - 1024 * int(line.split()[1]))
    return limit
