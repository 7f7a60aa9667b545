"""Signatures of faults in the program: what the late rank does instead of calling the operation."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rabit.diagnostics.doctor.cause import Found
from rabit.diagnostics.doctor.picture import LOADER, Key, Picture, RankView
from rabit.diagnostics.look.stacks import ranks_text, users_line

__all__ = [
    "STORAGE",
    "gil_held",
    "program_differs",
    "replicas_differ",
    "blocking_call",
    "branch",
    "checkpoint",
    "collector",
    "compile_on_one",
    "cross_order",
    "data_skew",
    "fork_deadlock",
    "left_early",
    "loader_disk",
    "loader_slow",
    "nonfinite",
    "other_steps",
    "own_world",
    "raised",
]

_NETWORK = (
    "ssl.py",
    "socket.py",
    "http/client",
    "urllib",
    "requests/",
    "wandb",
    "mlflow",
    "smtplib",
    "ftplib",
)
_CHECKPOINT = (
    "checkpoint",
    "torch/serialization",
    "fsync",
    "save_file",
    "safetensors",
    "pickle.py",
)
_COMPILE = (
    "_dynamo",
    "_inductor",
    "torch/compiler",
    "triton",
    "jax/_src/compiler",
    "cpp_extension",
    "codecache",
)
STORAGE = (
    "nfs",
    "fuse",
    "rpc",
    "request_wait_answer",
    "folio_wait",
    "io_schedule",
    "ext4",
    "xfs",
    "blk",
)
_WAITING = (
    "threading.py",
    "queue.py",
    "multiprocessing",
    "selectors.py",
    "socket.py",
    "concurrent/futures",
)
# How often a second a thread wakes that waits for Python's lock: it asks for it every 5 ms.
_WAKES = 30


def _name(key: Key) -> str:
    return f"{key[0]} '{key[1]}'"


def _waiting_text(picture: Picture) -> str:
    assert picture.oldest is not None
    key, waiting, _ = picture.oldest
    line = next((picture.ranks[rank].line for rank in waiting if picture.ranks[rank].line), "")
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{ranks_text(waiting)} {verb} for {_name(key)}" + (f" at {line}" if line else "")


def _late_views(picture: Picture) -> list[RankView]:
    return [picture.ranks[rank] for rank in picture.late]


def branch(picture: Picture) -> Found | None:
    """A late rank is awake in code of the user, or waits there, and not in the operation."""
    if picture.oldest is None:
        return None
    views = [view for view in _late_views(picture) if view.is_alive and not view.is_in_rabit]
    if not views:
        return None
    others = {picture.ranks[rank].line for rank in picture.waiting}
    line = views[0].line
    score = 0.75 if line and line not in others else 0.4
    # Two looks at one place: it stays there.
    if len(views[0].stacks) > 1 and len({str(stack[:1]) for stack in views[0].stacks}) == 1:
        score += 0.1
    evidence = [_waiting_text(picture)]
    if line:
        evidence.append(f"{ranks_text([view.rank for view in views])} is at {line}")
    values = {
        "rank": ranks_text(picture.late),
        "line": line or "another place",
        "name": _name(picture.oldest[0]),
    }
    return Found(score, picture.late, sorted({view.host for view in views}), line, evidence, values)


def cross_order(picture: Picture) -> Found | None:
    """Two ranks wait in different operations, each of which the other has not submitted."""
    if picture.oldest is None:
        return None
    key, waiting, missing = picture.oldest
    for rank in missing:
        view = picture.ranks[rank]
        own = [(each["kind"], each["name"], each["group"]) for each in view.waits_for]
        crossed = [
            each for each in own if not any(_has(picture.ranks[other], each) for other in waiting)
        ]
        if crossed:
            other = crossed[0]
            evidence = [
                _waiting_text(picture),
                f"{ranks_text([rank])} waits for {_name(other)} at {view.line or '?'}",
            ]
            # Those that are fewer do it otherwise than the rest.
            odd = min(missing, waiting, key=len)
            values = {"a": _name(key), "b": _name(other), "rank": ranks_text(odd)}
            return Found(
                0.92, odd, _hosts(picture, odd), picture.ranks[odd[0]].line, evidence, values
            )
    return None


def _has(view: RankView, key: Key) -> bool:
    return any((each["kind"], each["name"], each["group"]) == key for each in view.open)


def other_steps(picture: Picture) -> Found | None:
    """Ranks have made different numbers of steps, and one of those with fewer or more has ended or goes elsewhere."""
    if picture.size < 2:
        return None
    steps = {rank: view.steps for rank, view in picture.ranks.items() if view.document}
    if not steps or not max(steps.values()):
        return None
    late = picture.late or [rank for rank, view in picture.ranks.items() if _ended_well(view)]
    if not late:
        return None
    ended = [
        rank
        for rank in late
        if not picture.ranks[rank].is_alive and _ended_well(picture.ranks[rank])
    ]
    rest = [count for rank, count in steps.items() if rank not in late]
    if not ended or not rest:
        return None
    least, most = min(steps[rank] for rank in ended), max(rest)
    evidence = [
        f"{ranks_text(ended)} ended well after {least} steps",
        f"{ranks_text([rank for rank in steps if rank not in late])} is in step {most + 1}",
    ]
    values = {"rank": ranks_text(ended), "steps": least, "others": most}
    return Found(
        0.95, ended, sorted({picture.ranks[rank].host for rank in ended}), "", evidence, values
    )


def _ended_well(view: RankView) -> bool:
    if "status" in view.end:
        return bool(view.end["status"] == 0)
    return view.header.get("end") == "stopped"


def left_early(picture: Picture) -> Found | None:
    """A rank has ended well while others waited for it, and nobody counts steps."""
    if picture.oldest is None or any(view.steps for view in picture.ranks.values()):
        return None
    ended = [
        rank
        for rank in picture.late
        if _ended_well(picture.ranks[rank]) and not picture.ranks[rank].is_alive
    ]
    if not ended:
        return None
    counts = {rank: view.counters.get("submitted", 0) for rank, view in picture.ranks.items()}
    evidence = [
        _waiting_text(picture),
        f"{ranks_text(ended)} ended well after {min(counts[rank] for rank in ended)} operations; another rank has "
        f"submitted {max(counts.values())}",
    ]
    return Found(
        0.9,
        ended,
        sorted({picture.ranks[rank].host for rank in ended}),
        "",
        evidence,
        {"rank": ranks_text(ended)},
    )


def fork_deadlock(picture: Picture) -> Found | None:
    """The main thread waits for workers that all sleep on a lock without using a processor."""
    for view in _late_views(picture):
        workers = [each for each in view.document.get("workers", []) if each.get("state") == "S"]
        if not workers or view.is_in(*LOADER) < 0.5:
            continue
        stuck = [worker for worker in workers if "futex" in str(worker.get("waits_in", ""))]
        if not stuck or len(view.document["workers"]) != len(workers):
            continue
        spent = sum(worker.get("user_ms", 0) for worker in workers)
        evidence = [
            f"rank {view.rank} waits for its loader at {view.frame_with(*LOADER)}",
            f"{len(stuck)} of {len(workers)} worker processes wait for a lock (futex), having used {spent} ms in all",
        ]
        return Found(0.9, [view.rank], [view.host], view.line, evidence, {"workers": len(workers)})
    return None


def _loader_share(view: RankView) -> float:
    return max(
        view.is_in(*LOADER),
        view.counters.get("loader_ns", 0) / max(1, view.counters.get("step_ns", 0)),
    )


def loader_slow(picture: Picture) -> Found | None:
    """The late rank is found waiting for its data, whose workers compute."""
    for view in _late_views(picture):
        share = _loader_share(view)
        if share < 0.4:
            continue
        workers = view.document.get("workers", [])
        busy = sum(worker.get("state") == "R" for worker in workers)
        if workers and not busy and picture.phase == "hung":
            continue
        if view.sleeps_in(*STORAGE) > 0.5 * share:
            continue
        waits_for_disk = sum(each.get("state") == "D" for each in [*workers, view.process])
        if waits_for_disk > busy:
            continue
        peers = max((_loader_share(other) for other in picture.others([view.rank])), default=0.0)
        evidence = [
            f"rank {view.rank} is found loading data in {share:.0%} of the looks, the other ranks in {peers:.0%}",
        ]
        if place := view.line_with(*LOADER):
            evidence.append(f"it loads at {place}")
        if workers:
            evidence.append(f"{busy} of its {len(workers)} workers compute")
        free = int(picture.hosts.get(view.host, {}).get("processors", 0))
        score = min(0.92, 0.55 + 0.5 * (share - peers))
        return Found(
            score,
            [view.rank],
            [view.host],
            view.line,
            evidence,
            {"rank": f"rank {view.rank}", "processors": free},
        )
    return None


def loader_disk(picture: Picture) -> Found | None:
    """The late rank or its workers wait for storage."""
    for view in _late_views(picture):
        processes = [view.process, *view.document.get("workers", [])]
        asleep = [
            process
            for process in processes
            if process.get("state") == "D"
            or any(word in str(process.get("waits_in")) for word in STORAGE)
        ]
        delay = (view.rate("block_io_ms") or 0.0) / 1e3
        own = view.sleeps_in(*STORAGE)
        if max(delay, own) < 0.2 and (not asleep or not view.is_in(*LOADER)):
            continue
        # Who saves is late because of that, and who waits for one page after another lacks memory.
        if view.is_in(*_CHECKPOINT) > 0.3 or view.paging > 50:
            continue
        rate = view.rate("read_bytes") or 0.0
        share = max(delay, own, len(asleep) / len(processes))
        evidence = [f"rank {view.rank} or its workers wait for storage {share:.0%} of the time"]
        if rate:
            evidence.append(f"it reads {rate / 1e6:.1f} MB/s")
        score = 0.93 if view.is_in(*LOADER) > 0.3 else 0.65
        return Found(
            score, [view.rank], [view.host], view.line, evidence, {"rate": f"{rate / 1e6:.1f}"}
        )
    return None


def data_skew(picture: Picture) -> Found | None:
    """The late rank computes more than its peers, with a processor of its own, and is not loading."""
    if picture.phase != "running" or len(picture.ranks) < 2:
        return None
    for view in _late_views(picture):
        peers = picture.median_of([view.rank], "processor_share")
        explained = max(
            _loader_share(view),
            view.is_in(*_NETWORK),
            view.is_in(*_CHECKPOINT),
            view.is_in(*_COMPILE),
        )
        # Who lacks a core more than its peers do is late because of that.
        is_starved = view.starved > 0.25 + picture.median_of([view.rank], "starved")
        factor = view.processor_share / peers if peers > 0.01 else 4.0
        if (
            view.processor_share + view.delay_share < 0.3
            or is_starved
            or explained > 0.3
            or view.paging > 50
            or factor < 1.25
        ):
            continue
        share = picture.late_share.get(view.rank, 0.0)
        evidence = [
            f"the others wait for rank {view.rank} {share:.0%} of the time",
            f"rank {view.rank} uses {view.processor_share:.1f} cores and the others {peers:.1f}, and it does not "
            "wait for a core longer than they do",
        ]
        values = {"rank": f"rank {view.rank}", "factor": f"{factor:.1f}"}
        score = 0.88 if factor >= 1.5 and share >= 0.2 else 0.7
        return Found(score, [view.rank], [view.host], view.line, evidence, values)
    return None


def compile_on_one(picture: Picture) -> Found | None:
    """The late rank compiles."""
    for view in _late_views(picture):
        share = view.is_in(*_COMPILE)
        compilers = [
            each
            for each in view.document.get("workers", [])
            if str(each.get("command", "")).startswith(
                ("cc1", "c++", "g++", "gcc", "clang", "nvcc", "ptxas", "ld")
            )
        ]
        if share < 0.3 and not compilers:
            continue
        what = (
            f"starts {compilers[0]['command']}"
            if compilers
            else f"is at {view.frame_with(*_COMPILE)}"
        )
        return Found(
            0.9,
            [view.rank],
            [view.host],
            view.line,
            [f"rank {view.rank} {what}"],
            {"rank": f"rank {view.rank}"},
        )
    return None


def checkpoint(picture: Picture) -> Found | None:
    """The late rank writes a checkpoint."""
    for view in _late_views(picture):
        share = view.is_in(*_CHECKPOINT)
        marked = [mark for mark in view.marks if "checkpoint" in mark["text"]]
        if share < 0.3:
            continue
        evidence = [f"rank {view.rank} is at {view.frame_with(*_CHECKPOINT)}"]
        if marked:
            evidence.append(f"its last checkpoint took {marked[-1]['duration_ns'] / 1e9:.1f} s")
        score = 0.9 if share > 0.7 else 0.86
        return Found(
            score, [view.rank], [view.host], view.line, evidence, {"rank": f"rank {view.rank}"}
        )
    return None


def gil_held(picture: Picture) -> Found | None:
    """The main thread of the late rank asks for Python's lock again and again, and another thread keeps it."""
    for view in _late_views(picture):
        wakes = view.rate("voluntary") or 0.0
        stands = len({str(stack[:2]) for stack in view.stacks}) == 1
        waits = "futex" in str(view.process.get("waits_in", ""))
        if view.is_in_rabit or wakes < _WAKES or not stands or not waits:
            continue
        threads = [
            users_line(thread["frames"])
            for asked in view.document.get("stacks", [])[-1:]
            for thread in asked
            if not thread["main"] and thread["frames"] and not _is_waiting(thread["frames"][0])
        ]
        # A loop over a lock with a time limit wakes as often.
        if not threads and _is_waiting(view.stack[0]):
            continue
        evidence = [
            f"the main thread of rank {view.rank} asks for Python's lock {wakes:.0f} times a second at {view.line}",
            *(f"another thread is at {line}" for line in threads[:2]),
        ]
        line = threads[0] if threads else "the native call of another thread"
        score = 0.93 if threads else 0.8
        return Found(score, [view.rank], [view.host], view.line, evidence, {"line": line})
    return None


def _is_waiting(frame: Sequence[object]) -> bool:
    """A thread whose innermost frame is this one waits for another one, or for input."""
    return any(word in str(frame[0]) for word in _WAITING)


def blocking_call(picture: Picture) -> Found | None:
    """The late rank waits for a host outside of the job."""
    for view in _late_views(picture):
        share = view.is_in(*_NETWORK)
        if share < 0.3:
            continue
        evidence = [
            f"rank {view.rank} is at {view.frame_with(*_NETWORK)} in {share:.0%} of the looks"
        ]
        return Found(
            0.9 if share > 0.8 else 0.8,
            [view.rank],
            [view.host],
            view.line,
            evidence,
            {"rank": f"rank {view.rank}"},
        )
    return None


def collector(picture: Picture) -> Found | None:
    """The garbage collector takes a good part of the time of the late rank."""
    for rank in picture.late or list(picture.ranks):
        view = picture.ranks[rank]
        marks = [mark for mark in view.marks if mark["end_ns"] - mark["duration_ns"] >= view.trains_since_ns]
        pauses = [mark for mark in marks if mark["text"].startswith("gc ")]
        if not pauses:
            continue
        # Until now: a rank that has marked nothing else for long has not spent that time in the collector.
        first = min(mark["end_ns"] - mark["duration_ns"] for mark in marks)
        last = max(int(view.process.get("time_ns", 0)), *(mark["end_ns"] for mark in marks))
        span = last - first
        share = sum(pause["duration_ns"] for pause in pauses) / max(span, 1)
        if len(pauses) < 2 or share < 0.05:
            continue
        longest = max(pause["duration_ns"] for pause in pauses) / 1e6
        evidence = [
            f"the garbage collector of rank {rank} takes {share:.0%} of the time, up to {longest:.0f} ms at once"
        ]
        # Of a job that stands the pause is not over, and something else may hold the rank.
        score = 0.92 if share > 0.15 and picture.phase == "running" else 0.86
        return Found(score, [rank], [view.host], "", evidence, {"rank": f"rank {rank}"})
    return None


def nonfinite(picture: Picture) -> Found | None:
    """A rank has counted values that are not finite."""
    found = [rank for rank, view in picture.ranks.items() if view.counters.get("nonfinite", 0)]
    raised = [
        rank
        for rank, view in picture.ranks.items()
        # Who has lost it says so of another rank.
        if "not finite" in str(view.end.get("message", "")) and view.end.get("lost", -1) < 0
    ]
    said, named = _told(picture, "not finite", "has nan at", "has inf at", "has -inf at")
    ranks = sorted({*found, *raised, *named})
    if not ranks and not said:
        return None
    if said:
        return Found(0.93, ranks, _hosts(picture, ranks), "", [said], {})
    view = picture.ranks[ranks[0]]
    message = str(view.end.get("message", "")).partition("\n")[0]
    return Found(
        0.92,
        ranks,
        [view.host],
        view.line,
        [f"{ranks_text(ranks)} reports {message or 'values that are not finite'}"],
        {},
    )


def _told(picture: Picture, *words: str) -> tuple[str, list[int]]:
    """What all ranks report with one of `words`, and which ranks that names: "... of rank 2 has nan ..."."""
    for view in picture.ranks.values():
        message = str(view.end.get("message", "")).partition("\n")[0]
        if view.end.get("raised") == "IntegrityError" and any(word in message for word in words):
            found = re.search(r"rank (\d+)", message)
            return message, [int(found[1])] if found else []
    return "", []


def _hosts(picture: Picture, ranks: Sequence[int]) -> list[str]:
    return sorted({picture.ranks[rank].host for rank in ranks if rank in picture.ranks})


def replicas_differ(picture: Picture) -> Found | None:
    """Ranks have compared their parameters, and those of one are others."""
    said, ranks = _told(picture, "replicas differ")
    if not said:
        return None
    return Found(
        0.95,
        ranks,
        _hosts(picture, ranks),
        "",
        [said],
        {"rank": ranks_text(ranks) if ranks else "a rank"},
    )


def program_differs(picture: Picture) -> Found | None:
    """Ranks run different copies of one script."""
    scripts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, view in picture.ranks.items():
        script, code = str(view.header.get("script", "")), str(view.header.get("script_hash", ""))
        if script and code:
            scripts[Path(script).name][code].append(rank)
    for name, by_code in scripts.items():
        if len(by_code) < 2:
            continue
        odd = min(by_code.values(), key=len)
        rest = [rank for ranks in by_code.values() if ranks is not odd for rank in ranks]
        evidence = [
            f"{ranks_text(ranks)} runs {picture.ranks[ranks[0]].header['script']}, of content {code}"
            for code, ranks in by_code.items()
        ]
        values = {"name": name, "rank": ranks_text(odd), "others": ranks_text(rest)}
        score = 0.94 if picture.phase in ("hung", "ended") else 0.5
        return Found(score, odd, _hosts(picture, odd), "", evidence[:3], values)
    return None


def own_world(picture: Picture) -> Found | None:
    """A job of one rank whose scheduler was asked for more tasks."""
    if picture.size != 1:
        return None
    for view in picture.ranks.values():
        tasks = int(view.header.get("tasks", 0))
        if tasks > 1:
            evidence = [f"the job has 1 rank, and the scheduler was asked for {tasks} tasks"]
            values = {"tasks": tasks, "script": Path(str(view.header.get("script", ""))).name}
            return Found(0.9, [view.rank], [view.host], "", evidence, values)
    return None


def raised(picture: Picture) -> Found | None:
    """A rank has ended by an exception of its own: the others are a consequence."""
    own = [
        (view.end.get("at_s", 0.0), rank)
        for rank, view in picture.ranks.items()
        if view.end.get("raised") and view.end.get("lost", -1) < 0
    ]
    if not own:
        return None
    view = picture.ranks[min(own)[1]]
    message = str(view.end.get("message", "")).partition("\n")[0]
    text = f"rank {view.rank} raised {view.end['raised']}" + (f": {message}" if message else "")
    steps = statistics.median([rank.steps for rank in picture.ranks.values()])
    evidence = [text, f"after {view.steps} steps; the median of all ranks is {steps:g}"]
    return Found(
        0.91,
        [view.rank],
        [view.host],
        view.line,
        evidence,
        {"line": view.line or "the line of its traceback"},
    )
