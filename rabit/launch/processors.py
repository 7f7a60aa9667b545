"""Which processors each rank of a host may use, and how many threads that is worth."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rabit.errors import InvalidArgument

__all__ = ["BINDINGS", "HostProcessors", "as_list", "bind", "bind_with_servers", "thread_count"]

BINDINGS = ("none", "numa", "core")


@dataclass(frozen=True)
class HostProcessors:
    """The logical processors that this process may use.

    nodes: by NUMA node; within a node those of one core are neighbours.
    quota: how many of them the control group may keep busy at a time; infinite without a limit.
    """

    nodes: tuple[tuple[int, ...], ...]
    quota: float = float("inf")

    @classmethod
    def here(cls, root: str = "/") -> HostProcessors:
        """`root` stands for "/" in tests."""
        allowed = frozenset(os.sched_getaffinity(0))
        devices = Path(root) / "sys/devices/system"
        found = sorted(devices.glob("node/node[0-9]*"), key=lambda each: int(each.name[4:]))
        nodes = [_parse_list(_read(each / "cpulist")) for each in found]
        known = frozenset[int]().union(*nodes)
        nodes.append(allowed - known)  # All of them where the kernel tells of no nodes.
        ordered = (tuple(sorted(node & allowed, key=_core_of(devices))) for node in nodes)
        return cls(tuple(each for each in ordered if each), _quota(Path(root)))


def bind(binding: str, local_size: int, host: HostProcessors) -> list[frozenset[int]]:
    """The processors of each of `local_size` ranks.

    none: all.  numa: those of one node, ranks dealt to nodes in blocks.  core: an equal share, of
    its own.  Raises InvalidArgument where there are fewer processors than ranks to share them.
    """
    everything = [each for node in host.nodes for each in node]
    if binding == "none":
        return [frozenset(everything)] * local_size
    if binding == "numa":
        return [frozenset(host.nodes[i * len(host.nodes) // local_size]) for i in range(local_size)]
    if local_size > len(everything):
        raise InvalidArgument(
            f"--bind-to core gives every rank a processor of its own, and {local_size} ranks have "
            f"{len(everything)} ({as_list(everything)}). Start fewer ranks on this host, or use "
            "--bind-to numa or none."
        )
    ends = [i * len(everything) // local_size for i in range(local_size + 1)]
    return [frozenset(everything[ends[i] : ends[i + 1]]) for i in range(local_size)]


def bind_with_servers(
    binding: str, ranks: int, servers: int, host: HostProcessors
) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
    """As `bind`, of the ranks and the summation servers of a host.

    core: servers have shares of their own where there are processors for all, else any.  numa: they are
    dealt to the nodes from the last one on.
    """
    everything = [each for node in host.nodes for each in node]
    if binding == "core" and ranks + servers <= len(everything):
        shares = bind(binding, ranks + servers, host)
        return shares[:ranks], shares[ranks:]
    if binding == "numa":
        theirs = [frozenset(host.nodes[-1 - i % len(host.nodes)]) for i in range(servers)]
    else:
        theirs = [frozenset(everything)] * servers
    return bind(binding, ranks, host) if ranks else [], theirs


def thread_count(index: int, places: Sequence[frozenset[int]], quota: float) -> int:
    """Threads for the rank of `places[index]`, so that ranks do not fight for the processors."""
    sharers = [sum(each in place for place in places) for each in places[index]]
    fair = sum(1 / count for count in sharers)
    return max(1, int(min(fair, quota / len(places)) + 1e-6))


def as_list(processors: Sequence[int] | frozenset[int]) -> str:
    """As the kernel writes it: "0-3,8"."""
    runs: list[list[int]] = []
    for processor in sorted(processors):
        if runs and runs[-1][1] == processor - 1:
            runs[-1][1] = processor
        else:
            runs.append([processor, processor])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _read(path: Path) -> str:
    """The text of a file of the kernel; "" where it has none, as on other kernels."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _parse_list(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _core_of(devices: Path) -> Callable[[int], tuple[int, int, int]]:
    """The order in which processors of one core are neighbours."""

    def place(processor: int) -> tuple[int, int, int]:
        topology = devices / f"cpu/cpu{processor}/topology"
        package, core = (
            _read(topology / name).strip() for name in ("physical_package_id", "core_id")
        )
        # Without numbers of cores, processors stay in their own order.
        return int(package or 0), int(core or processor), processor

    return place


def _quota(root: Path) -> float:
    """The narrowest limit of the control group and those around it, of version 1 or 2."""
    narrowest = float("inf")
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = Path(path.lstrip("/"))
        # A container sees its own group as the root: folders around it may not exist.
        for folder in (mount / group, *(mount / parent for parent in group.parents)):
            narrowest = min(narrowest, _limit(folder))
    return narrowest


def _limit(folder: Path) -> float:
    """'max 100000' or a time in each period, in microseconds; version 1 has a file for each."""
    words = _read(folder / "cpu.max").split() or [
        _read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):
        return float("inf")
    return int(words[0]) / int(words[1])
