"""Signatures of faults of hosts: processors, memory, storage, and ends that the system has caused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from rabit.diagnostics.doctor.cause import Found
from rabit.diagnostics.doctor.picture import Picture, RankView
from rabit.diagnostics.doctor.program import STORAGE
from rabit.diagnostics.look.stacks import ranks_text

__all__ = [
    "crashed",
    "disk_full",
    "foreign_load",
    "launcher_died",
    "killed",
    "leak",
    "one_thread",
    "out_of_memory",
    "oversubscribed",
    "pinned",
    "port_in_use",
    "ports_exhausted",
    "shm_full",
    "stopped",
    "storage_hangs",
    "swapping",
    "terminated",
    "throttled",
    "too_many_files",
]

_GIB = 1 << 30


def stopped(picture: Picture) -> Found | None:
    """A process is stopped by a signal or by a debugger, or was when it was looked at last."""
    views = [view for view in picture.ranks.values() if _last_state(view) in ("T", "t")]
    if not views:
        return None
    ranks = [view.rank for view in views]
    tracer = int(views[0].process.get("tracer", 0))
    who = f"process {tracer} traces it" if tracer else "its state is T"
    evidence = [f"{ranks_text(ranks)} is stopped: {who}"]
    if picture.phase == "ended":
        evidence = [
            f"{ranks_text(ranks)} was stopped (state T) when it was seen last, and then taken for lost"
        ]
    values = {
        "pids": " ".join(str(view.header.get("pid")) for view in views),
        "host": views[0].host,
    }
    return Found(0.97, ranks, sorted({view.host for view in views}), "", evidence, values)


def _last_state(view: RankView) -> str:
    if view.state:
        return view.state
    # The launcher kills what is stopped: its very last sample may be of a process that has ended.
    last = [chr(sample.get("state", 0)) for sample in view.samples[-4:]]
    return next((state for state in last if state in ("T", "t")), last[-1] if last else "")


def _suspects(picture: Picture) -> list[RankView]:
    return [picture.ranks[rank] for rank in picture.late] or list(picture.ranks.values())


def foreign_load(picture: Picture) -> Found | None:
    """Ranks wait for cores that processes outside of the job use."""
    best: Found | None = None
    for host, views in picture.by_host().items():
        busy = _foreign(picture, host)
        cores = sum(each["cores"] for each in busy)
        delay = max((view.delay_share for view in views), default=0.0)
        if cores < 0.5 or delay < 0.1:
            continue
        first = busy[0]
        starved = [view.rank for view in views if view.delay_share >= 0.1]
        evidence = [
            f"{ranks_text(starved)}: ready to run and without a core {delay:.0%} of the time",
            f"{first['command']} (process {first['pid']}) and others outside of the job use {cores:.1f} of "
            f"{picture.hosts.get(host, {}).get('processors', '?')} cores of {host}",
        ]
        values = {
            "command": first["command"],
            "pid": first["pid"],
            "cores": f"{cores:.1f}",
            "host": host,
        }
        # Never sure: a machine that others use as well is no fault by itself.
        score = 0.84 if delay > 0.2 and cores >= 0.9 else 0.65
        found = Found(score, starved, [host], "", evidence, values)
        best = found if best is None or found.score > best.score else best
    return best


def _foreign(picture: Picture, host: str) -> list[dict[str, Any]]:
    now = picture.hosts.get(host, {})
    before = {each["pid"]: each["ms"] for each in now.get("before", {}).get("others", [])}
    span = (now.get("time_ns", 0) - now.get("before", {}).get("time_ns", 0)) / 1e6
    if span <= 0:
        return []
    found = [
        {**each, "cores": (each["ms"] - before.get(each["pid"], each["ms"])) / span}
        for each in now.get("others", [])
    ]
    return sorted((each for each in found if each["cores"] > 0.05), key=lambda each: -each["cores"])


def oversubscribed(picture: Picture) -> Found | None:
    """The ranks of a host run more threads than it has cores, and wait for cores."""
    for host, views in picture.by_host().items():
        cores = int(picture.hosts.get(host, {}).get("processors", 0))
        delay = sum(view.delay_share for view in views)
        used = sum(view.processor_share for view in views)
        wanted = sum(max(1, int(view.header.get("omp_threads", 0))) for view in views)
        foreign = sum(each["cores"] for each in _foreign(picture, host))
        if not cores or wanted <= cores or delay < 0.3 * len(views) or used < 0.15 * cores:
            continue
        threads = max(int(view.header.get("omp_threads", 0)) for view in views)
        if threads == 1:
            continue  # There is nothing to set: these are more ranks than cores.
        evidence = [
            f"{len(views)} ranks of {host} use {used:.1f} of {cores} cores and wait for cores {delay / len(views):.0%} "
            "of the time",
            f"OMP_NUM_THREADS is {threads or 'unset'}: {wanted} threads want to run",
        ]
        values = {
            "threads": max(1, cores // len(views)),
            "host": host,
            "ranks": len(views),
            "cores": cores,
        }
        # Next to much that is not of the job it is one of two causes.
        score = 0.6 if not threads else 0.86 if foreign > 0.6 * cores else 0.9
        return Found(score, [view.rank for view in views], [host], "", evidence, values)
    return None


def one_thread(picture: Picture) -> Found | None:
    """Each rank may use several cores and has one thread."""
    if picture.phase != "running":
        return None
    for host, views in picture.by_host().items():
        cores = int(picture.hosts.get(host, {}).get("processors", 0))
        per_rank = cores // max(1, len(views))
        threads = [int(view.header.get("omp_threads", 0)) for view in views]
        # Those that wait for a core want one.
        used = sum(min(1.0, view.processor_share + view.delay_share) for view in views)
        if per_rank >= 2 and set(threads) == {1} and used > 0.7 * len(views):
            evidence = [
                f"OMP_NUM_THREADS is 1 on {host}, where {len(views)} ranks share {cores} cores and use {used:.1f}"
            ]
            return Found(
                0.7, [view.rank for view in views], [host], "", evidence, {"threads": per_rank}
            )
    return None


def throttled(picture: Picture) -> Found | None:
    """The control group's quota holds processes back."""
    for host, now in picture.hosts.items():
        before = now.get("before", {})
        count = now.get("nr_throttled", 0) - before.get("nr_throttled", now.get("nr_throttled", 0))
        if count < 1:
            continue
        quota = now.get("quota_processors_100", 0) / 100
        span = max(1e-3, (now["time_ns"] - before["time_ns"]) / 1e9)
        evidence = [
            f"the control group of {host} was throttled {count} times in {span:.1f} s"
            + (f"; its quota is {quota:g} cores" if quota else "")
        ]
        ranks = [view.rank for view in picture.ranks.values() if view.host == host]
        return Found(
            0.92 if count / span > 2 else 0.7,
            ranks,
            [host],
            "",
            evidence,
            {"quota": f"{quota:g}" if quota else "set"},
        )
    return None


def pinned(picture: Picture) -> Found | None:
    """Two ranks of a host may use the same few cores only."""
    for host, views in picture.by_host().items():
        cores = int(picture.hosts.get(host, {}).get("processors", 0))
        for place, view in enumerate(views):
            own = set(view.process.get("affinity", ()))
            same = [
                view
                for view in views[place + 1 :]
                if own and set(view.process.get("affinity", ())) & own
            ]
            crowd = [view, *same]
            shared = set().union(*(each.process["affinity"] for each in crowd)) if same else own
            if same and len(shared) < len(crowd) and len(shared) < cores:
                delay = max(each.delay_share for each in crowd)
                ranks = [each.rank for each in crowd]
                evidence = [
                    f"{ranks_text(ranks)} of {host} may use core {', '.join(map(str, sorted(shared)))} only, of {cores}"
                ]
                evidence.append(f"they wait for it {delay:.0%} of the time")
                return Found(
                    0.93 if delay > 0.1 else 0.6,
                    ranks,
                    [host],
                    "",
                    evidence,
                    {"ranks": ranks_text(ranks)},
                )
    return None


def swapping(picture: Picture) -> Found | None:
    """A rank waits for pages of its own memory."""
    for view in _suspects(picture):
        faults, rate = view.paging, view.rate("major_faults") or 0.0
        swapped = int(view.process.get("swap_bytes", 0))
        if faults < 100 and swapped < 1 << 26:
            continue
        evidence = [
            f"rank {view.rank} has {rate:.0f} major page faults a second and {swapped / _GIB:.2f} GiB in swap"
        ]
        free = picture.hosts.get(view.host, {}).get("available_bytes", 0)
        evidence.append(f"{view.host} has {free / _GIB:.1f} GiB left")
        return Found(
            0.9 if faults >= 100 else 0.6,
            [view.rank],
            [view.host],
            "",
            evidence,
            {"host": view.host},
        )
    return None


def storage_hangs(picture: Picture) -> Found | None:
    """A process sleeps without an end in the kernel, in a file system."""
    for view in _suspects(picture):
        where = str(view.process.get("waits_in", ""))
        is_storage = any(word in where for word in STORAGE)
        if view.state == "D" and picture.phase in ("hung", "idle"):
            evidence = [
                f"rank {view.rank} sleeps in the kernel ({where or 'state D'}) and takes no signal"
            ]
            return Found(
                0.92 if is_storage else 0.75,
                [view.rank],
                [view.host],
                view.line,
                evidence,
                {"where": where or "the kernel"},
            )
        if is_storage and picture.phase in ("hung", "idle") and view.rank in picture.late:
            evidence = [f"rank {view.rank} waits for a file system ({where}) at {view.line}"]
            return Found(0.92, [view.rank], [view.host], view.line, evidence, {"where": where})
    return None


def leak(picture: Picture) -> Found | None:
    """The memory of a rank grows without an end."""
    for view in picture.ranks.values():
        sizes = [
            (sample["time_ns"], sample["rss_bytes"])
            for sample in view.samples
            if sample.get("rss_bytes") and sample["time_ns"] > view.trains_since_ns
        ]
        if len(sizes) < 10:
            continue
        span = (sizes[-1][0] - sizes[0][0]) / 1e9
        growth = sizes[-1][1] - sizes[0][1]
        rises = sum(b[1] > a[1] for a, b in itertools.pairwise(sizes))
        if (
            span < 8
            or growth < 64 << 20
            or rises < 0.7 * (len(sizes) - 1)
            or growth / span < 2 << 20
        ):
            continue
        free = picture.hosts.get(view.host, {}).get("available_bytes", 0) or view.samples[-1].get(
            "available_bytes", 0
        )
        left = free / (growth / span)
        evidence = [
            f"rank {view.rank} grows by {growth / span / 1e6:.0f} MB/s, to {sizes[-1][1] / _GIB:.2f} GiB"
        ]
        if free:
            evidence.append(f"at that rate {view.host} is out of memory in {left / 60:.0f} min")
        # Never sure: a cache that fills does the same.
        score = 0.89 if rises >= 0.8 * (len(sizes) - 1) else 0.7
        return Found(score, [view.rank], [view.host], "", evidence, {"rank": f"rank {view.rank}"})
    return None


# --- Ends ------------------------------------------------------------------------------------------


def _ended_by(picture: Picture, statuses: Sequence[int]) -> list[RankView]:
    """Ranks that ended so, the first of them first; what the launcher itself has stopped is a consequence."""
    found = [
        view
        for view in picture.ranks.values()
        if view.end.get("status") in statuses
        and not view.end.get("was_stopped")
        and not view.end.get("raised")
    ]
    return sorted(found, key=lambda view: float(view.end.get("at_s", 0.0)))


def out_of_memory(picture: Picture) -> Found | None:
    """Killed by SIGKILL, and the kernel counted a kill for want of memory or the limit was near."""
    for view in _ended_by(picture, (-9, 137)):
        last = view.samples[-1] if view.samples else {}
        limit = last.get("cgroup_limit_bytes", 0)
        now = picture.hosts.get(view.host, {})
        first = view.samples[0] if view.samples else {}
        events = now.get("oom_kill", last.get("oom_kills", 0)) - first.get("oom_kills", 0)
        used = last.get("rss_bytes", 0)
        is_near = bool(limit) and last.get("cgroup_bytes", 0) > 0.9 * limit
        is_scarce = 0 < last.get("available_bytes", 0) < 0.05 * last.get("memory_bytes", 0)
        if not events and not is_near and not is_scarce:
            continue
        evidence = [f"rank {view.rank} was killed by SIGKILL with {used / _GIB:.2f} GiB of memory"]
        if events:
            evidence.append(f"the kernel counted {events} kills for want of memory on {view.host}")
        if limit:
            evidence.append(
                f"its control group had {last.get('cgroup_bytes', 0) / _GIB:.2f} of {limit / _GIB:.2f} GiB"
            )
        score = 0.95 if events else 0.7
        return Found(
            score, [view.rank], [view.host], "", evidence, {"used": f"{used / _GIB:.1f} GiB"}
        )
    return None


def killed(picture: Picture) -> Found | None:
    """Killed by SIGKILL, with memory enough."""
    views = _ended_by(picture, (-9, 137))
    if not views or out_of_memory(picture) is not None:
        return None
    view = views[0]
    last = view.samples[-1] if view.samples else {}
    free = last.get("available_bytes", 0) or picture.hosts.get(view.host, {}).get(
        "available_bytes", 0
    )
    evidence = [f"rank {view.rank} was killed by SIGKILL after {view.steps} steps"]
    if free:
        evidence.append(
            f"it had {last.get('rss_bytes', 0) / _GIB:.2f} GiB, {view.host} had {free / _GIB:.1f} GiB left, and "
            "the kernel counted no kill for want of memory"
        )
    return Found(0.9 if free else 0.6, [view.rank], [view.host], "", evidence, {"host": view.host})


def terminated(picture: Picture) -> Found | None:
    """Ended by SIGTERM that the launcher did not send."""
    views = _ended_by(picture, (-15, 143, -10, -12))
    if not views:
        return None
    ranks = [view.rank for view in views]
    is_all = len(ranks) == len(picture.ranks)
    evidence = [f"{ranks_text(ranks)} was ended by SIGTERM from outside of the job"]
    if is_all:
        evidence.append("all ranks ended so: a time limit, a preemption, or a person")
    return Found(0.9, ranks, sorted({view.host for view in views}), "", evidence, {})


_CRASHES = {-11: "SIGSEGV", -4: "SIGILL", -7: "SIGBUS", -8: "SIGFPE", -6: "SIGABRT"}


def crashed(picture: Picture) -> Found | None:
    """Ended by a signal of its own doing."""
    views = _ended_by(picture, tuple(_CRASHES))
    if not views:
        return None
    view = views[0]
    name = _CRASHES[view.end["status"]]
    evidence = [f"rank {view.rank} was killed by {name} after {view.steps} steps"]
    running = [operation for operation in view.operations if operation["state"] == "open"]
    evidence.append(
        f"{len(running)} operations were under way: {running[0]['kind']} '{running[0]['name']}'"
        if running
        else "no operation of rabit was under way"
    )
    hosts = {view.host for view in views}
    if name == "SIGILL":
        evidence.append(
            f"hosts that have it: {', '.join(sorted(hosts))}: their processors may lack an instruction"
        )
    if name == "SIGBUS":
        evidence.append("memory that was promised was not there: a full /dev/shm does this")
    return Found(
        0.9, [view.rank for view in views], sorted(hosts), view.line, evidence, {"signal": name}
    )


def _full(picture: Picture, name: str, least: float) -> Found | None:
    for host, now in picture.hosts.items():
        total, free = now.get(f"{name}_bytes", 0), now.get(f"{name}_free_bytes", -1)
        if total and 0 <= free < max(least, 0.01 * total):
            evidence = [f"{host} has {free / 1e6:.1f} MB of {total / 1e6:.0f} MB left"]
            ranks = [view.rank for view in picture.ranks.values() if view.host == host]
            return Found(
                0.8, ranks, [host], "", evidence, {"host": host, "free": f"{free / 1e6:.1f} MB"}
            )
    return None


def shm_full(picture: Picture) -> Found | None:
    """/dev/shm has no room."""
    found = _full(picture, "shm", 1 << 20)
    bus = _ended_by(picture, (-7,))
    small = [
        each
        for each in bus
        if 0 < picture.hosts.get(each.host, {}).get("shm_bytes", 0) <= 128 << 20
    ]
    if small:  # What was in it has gone with the rank.
        total = picture.hosts[small[0].host]["shm_bytes"] / 1e6
        evidence = [
            f"rank {small[0].rank} was killed by SIGBUS, and /dev/shm of {small[0].host} has {total:.0f} MB"
        ]
        values = {"host": small[0].host, "free": f"{total:.0f} MB"}
        return Found(0.95, [each.rank for each in small], [small[0].host], "", evidence, values)
    if found is None or not (
        bus or picture.phase == "starting" or _says(picture, "No space left", "shared memory")
    ):
        return None
    return Found(
        0.95 if bus else 0.8,
        [view.rank for view in bus] or found.ranks,
        found.hosts,
        "",
        found.evidence,
        found.values,
    )


def disk_full(picture: Picture) -> Found | None:
    """A rank could not write."""
    ranks = _says(picture, "No space left on device", "ENOSPC", "Disk quota exceeded")
    if not ranks:
        return None
    view = picture.ranks[ranks[0]]
    return Found(
        0.95,
        ranks,
        [view.host],
        view.line,
        [
            f"rank {view.rank} raised {view.end.get('raised')}: "
            + str(view.end.get("message", "")).partition("\n")[0]
        ],
        {"host": view.host},
    )


def _says(picture: Picture, *words: str) -> list[int]:
    return [
        rank
        for rank, view in picture.ranks.items()
        if any(
            word in str(view.end.get("message", "")) + " ".join(view.end.get("tail", ()))
            for word in words
        )
    ]


def _own_error(picture: Picture, score: float, *words: str) -> Found | None:
    """A rank raised an error that says one of `words`."""
    views = [
        view
        for view in picture.ranks.values()
        if view.end.get("raised") and view.end.get("lost", -1) < 0
    ]
    for view in sorted(views, key=lambda view: float(view.end.get("at_s", 0.0))):
        message = str(view.end.get("message", "")).partition("\n")[0]
        if any(word in message for word in words):
            limits = view.header.get("limits", {})
            evidence = [f"rank {view.rank} raised {view.end['raised']}: {message}"]
            values = {"host": view.host, "line": view.line, "limit": limits.get("open_files", "?")}
            return Found(score, [view.rank], [view.host], view.line, evidence, values)
    return None


def too_many_files(picture: Picture) -> Found | None:
    """A limit of the process or the host on files, processes or threads."""
    return _own_error(
        picture,
        0.95,
        "Too many open files",
        "can't start new thread",
        "Resource temporarily unavailable",
    )


def port_in_use(picture: Picture) -> Found | None:
    """Another process listens where a rank is to listen."""
    return _own_error(picture, 0.95, "Address already in use", "address is already in use")


def ports_exhausted(picture: Picture) -> Found | None:
    """The host has no port left for another connection."""
    return _own_error(picture, 0.95, "Cannot assign requested address")


def launcher_died(picture: Picture) -> Found | None:
    """No record says how its rank ended, and all stopped at the same moment."""
    if picture.phase != "ended" or any(view.end for view in picture.ranks.values()):
        return None
    views = [view for view in picture.ranks.values() if view.counters.get("is_running")]
    if not views or len(views) < len(picture.ranks):
        return None
    last = [view.counters.get("last_progress_ns", 0) for view in views]
    apart = (max(last) - min(last)) / 1e9
    if apart > 5.0:
        return None
    evidence = [
        f"the records of all {len(views)} ranks end within {apart:.1f} s of each other, and none says why",
        "a rank that fails by itself leaves its reason, and so does a launcher that lives",
    ]
    hosts = sorted({view.host for view in views})
    return Found(
        0.75, [view.rank for view in views], hosts, "", evidence, {"hosts": ", ".join(hosts)}
    )
