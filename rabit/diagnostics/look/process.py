"""What the kernel says of a process and of its host."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["catches", "host_facts", "process_facts", "quick_state"]

_TICK_MS = 1000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_facts(pid: int) -> dict[str, Any]:
    """Times in milliseconds since its start, sizes in bytes; {} if there is no such process."""
    base = Path(f"/proc/{pid}")
    stat = _text(base / "stat")
    if not stat:
        return {}
    words = stat.rpartition(")")[2].split()
    found: dict[str, Any] = {
        "time_ns": time.monotonic_ns(),
        "command": stat.partition("(")[2].rpartition(")")[0],
        "state": words[0],
        "parent": int(words[1]),
        "major_faults": int(words[9]),
        "user_ms": int(words[11]) * _TICK_MS,
        "system_ms": int(words[12]) * _TICK_MS,
        "threads": int(words[17]),
        "start_ticks": int(words[19]),
        "rss_bytes": int(words[21]) * _PAGE,
        "block_io_ms": int(words[39]) * _TICK_MS if len(words) > 39 else 0,
    }
    delays = _text(base / "schedstat").split()
    if len(delays) == 3:
        found["run_delay_ms"] = _run_delay_ms(base)
    for line in _text(base / "status").splitlines():
        name, _, value = line.partition(":")
        if name in _STATUS:
            number = value.split()[0]
            is_hex = name.startswith("Sig")
            found[_STATUS[name]] = int(number, 16 if is_hex else 10) * (
                1024 if name == "VmSwap" else 1
            )
    for line in _text(base / "io").splitlines():
        name, _, value = line.partition(":")
        if name in ("read_bytes", "write_bytes"):
            found[{"write_bytes": "written_bytes"}.get(name, name)] = int(value)
    found["waits_in"] = _text(base / "wchan").strip("0\n")
    with contextlib.suppress(OSError):
        found["affinity"] = sorted(os.sched_getaffinity(pid))
    return found


def quick_state(pid: int) -> list[str]:
    """Its state, and where in the kernel its main thread sleeps: some ten microseconds."""
    base = Path(f"/proc/{pid}")
    return [_text(base / "stat").rpartition(")")[2][1:2], _text(base / "wchan").strip("0\n")]


_STATUS = {
    "VmSwap": "swap_bytes",
    "voluntary_ctxt_switches": "voluntary",
    "nonvoluntary_ctxt_switches": "involuntary",
    "TracerPid": "tracer",
    "SigCgt": "caught",
    "SigBlk": "blocked",
}


def _run_delay_ms(base: Path) -> int:
    """Of all threads: how long they were ready to run and did not."""
    total = 0
    with contextlib.suppress(OSError):
        for task in (base / "task").iterdir():
            words = _text(task / "schedstat").split()
            total += int(words[1]) if len(words) == 3 else 0
    return total // 1_000_000


def catches(pid: int, signum: int) -> bool:
    """True if the process has a handler for the signal, so that it does not end by it."""
    return bool(int(process_facts(pid).get("caught", 0)) >> (signum - 1) & 1)


def host_facts(own: set[int], with_others: bool = True) -> dict[str, Any]:
    """Of this host.  own: processes of the job; "others" are those that are not."""
    found: dict[str, Any] = {
        "time_ns": time.monotonic_ns(),
        "processors": len(os.sched_getaffinity(0)),
        "load_100": int(os.getloadavg()[0] * 100),
    }
    words = _text(Path("/proc/stat")).partition("\n")[0].split()
    if len(words) > 8:
        ticks = [int(word) * _TICK_MS for word in words[1:]]
        found.update(
            busy_ms=sum(ticks[:3]) + sum(ticks[5:8]), idle_ms=ticks[3] + ticks[4], steal_ms=ticks[7]
        )
    for line in _text(Path("/proc/meminfo")).splitlines():
        name, _, value = line.partition(":")
        if name in ("MemAvailable", "MemTotal", "SwapFree", "SwapTotal"):
            found[_MEMORY[name]] = int(value.split()[0]) * 1024
    for kind in ("cpu", "memory", "io"):
        pressure = _text(Path(f"/proc/pressure/{kind}")).partition("avg10=")[2].partition(" ")[0]
        if pressure:
            found[f"{kind}_pressure_100"] = int(float(pressure) * 100)
    for name, place in (("shm", "/dev/shm"), ("disk", "/tmp")):
        with contextlib.suppress(OSError):
            space = os.statvfs(place)
            found[f"{name}_free_bytes"] = space.f_bavail * space.f_frsize
            found[f"{name}_bytes"] = space.f_blocks * space.f_frsize
    found.update(_cgroup())
    if with_others:
        found["others"] = _others(own)
    return found


_MEMORY = {
    "MemAvailable": "available_bytes",
    "MemTotal": "memory_bytes",
    "SwapFree": "swap_free_bytes",
    "SwapTotal": "swap_bytes",
}


def _cgroup() -> dict[str, Any]:
    """Limits and events of this process's control group, of either version; what there is."""
    found: dict[str, Any] = {}
    for base in _cgroup_folders():
        for line in "\n".join(_text(base / file) for file in _CGROUP_EVENTS).splitlines():
            name, _, value = line.partition(" ")
            if name in ("nr_throttled", "throttled_usec", "throttled_time", "oom_kill"):
                found[name] = max(found.get(name, 0), int(value))
        for name, file in _CGROUP_FILES:
            words = _text(base / file).split()
            if words and words[0].isdigit() and int(words[0]) < 1 << 60:
                found.setdefault(name, int(words[0]))
        quota = _text(base / "cpu.max").split() or [
            _text(base / "cpu.cfs_quota_us").strip(),
            _text(base / "cpu.cfs_period_us").strip(),
        ]
        if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
            found.setdefault("quota_processors_100", 100 * int(quota[0]) // int(quota[1]))
    return found


_CGROUP_EVENTS = ("cpu.stat", "memory.events", "memory.oom_control")
_CGROUP_FILES = (
    ("cgroup_bytes", "memory.current"),
    ("cgroup_limit_bytes", "memory.max"),
    ("cgroup_bytes", "memory.usage_in_bytes"),
    ("cgroup_limit_bytes", "memory.limit_in_bytes"),
    ("processes_limit", "pids.max"),
)


def _cgroup_folders() -> list[Path]:
    found = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        for root in (Path("/sys/fs/cgroup") / controllers, Path("/sys/fs/cgroup")):
            for folder in (root / path.lstrip("/"), root):
                if folder.is_dir():
                    found.append(folder)
    return list(dict.fromkeys(found))


def _others(own: set[int]) -> list[dict[str, Any]]:
    """Processor times of what runs here and does not belong to the job."""
    found = []
    for each in Path("/proc").iterdir():
        if not each.name.isdigit():
            continue
        stat = _text(each / "stat")
        words = stat.rpartition(")")[2].split()
        if len(words) < 13 or int(each.name) in own or int(words[3]) in own or int(words[1]) in own:
            continue
        spent = (int(words[11]) + int(words[12])) * _TICK_MS
        if spent >= 100:
            found.append(
                {
                    "pid": int(each.name),
                    "command": stat.partition("(")[2].rpartition(")")[0],
                    "ms": spent,
                }
            )
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
