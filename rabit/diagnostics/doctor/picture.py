"""Picture: what a look at all ranks of a job amounts to: its phase, who is last, and what is different there."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rabit.diagnostics.look.stacks import Frame, users_line
from rabit.diagnostics.tracebacks import is_ours

__all__ = ["LOADER", "Key", "Picture", "RankView"]

# An operation that ranks do together: kind, name, group.
Key = tuple[str, str, int]
# After so long without an operation that ends, a job with something open hangs.
_HANGS_AFTER_S = 2.0
_PAIRS = ("send", "recv")
# What a loader of data has in its stack.
LOADER = (
    "dataloader.py",
    "DataLoader",
    "_get_data",
    "_next_data",
    "multiprocessing/queues",
    "loader",
)


@dataclass
class RankView:
    """One rank in a look."""

    rank: int
    document: Mapping[str, Any]
    end: Mapping[str, Any] = field(
        default_factory=dict
    )  # {"status": …, "raised": …} of one that has ended

    @property
    def host(self) -> str:
        return str(self.document.get("host", ""))

    @property
    def header(self) -> Mapping[str, Any]:
        return dict(self.document.get("header", {}))

    @property
    def counters(self) -> Mapping[str, int]:
        return dict(self.document.get("counters", {}))

    @cached_property
    def operations(self) -> list[Mapping[str, Any]]:
        """Of the newest engine."""
        found = list(self.document.get("operations", []))
        newest = max((each["epoch"] for each in found), default=0)
        return [each for each in found if each["epoch"] == newest]

    @cached_property
    def open(self) -> list[Mapping[str, Any]]:
        return [operation for operation in self.operations if operation["state"] == "open"]

    @cached_property
    def waits_for(self) -> list[Mapping[str, Any]]:
        """What is open and not agreed: some rank has not submitted it."""
        found = [operation for operation in self.open if not operation["agreed_ns"]]
        if not found and "status" in self.end:  # What waited has failed with its job.
            failed = [
                operation for operation in self.operations[-8:] if operation["state"] == "failed"
            ]
            found = [operation for operation in failed if not operation["agreed_ns"]]
        return found

    @property
    def process(self) -> Mapping[str, Any]:
        return dict(self.document.get("now", {}))

    @property
    def is_alive(self) -> bool:
        return bool(self.process) and self.process.get("state") != "Z" and "status" not in self.end

    @property
    def state(self) -> str:
        return str(self.process.get("state", ""))

    @property
    def steps(self) -> int:
        return int(self.counters.get("steps", 0))

    @cached_property
    def stacks(self) -> list[Sequence[Frame]]:
        """Of the main thread, one for each time that it was asked."""
        found = []
        for threads in self.document.get("stacks", []):
            main = next((thread["frames"] for thread in threads if thread["main"]), None)
            if main:
                found.append(main)
        return found

    @property
    def stack(self) -> Sequence[Frame]:
        return self.stacks[-1] if self.stacks else []

    @property
    def line(self) -> str:
        """Where the user's own code is; "": nobody knows."""
        return users_line(self.stack) or str(self.end.get("place", ""))

    @property
    def is_in_rabit(self) -> bool:
        """Its main thread waits in this library."""
        return bool(self.stack) and is_ours(self.stack[0][0])

    def is_in(self, *words: str) -> float:
        """The share of its stacks with a frame whose file or function holds one of `words`."""
        if not self.stacks:
            return 0.0
        return sum(_holds(each, words) for each in self.stacks) / len(self.stacks)

    @property
    def counters_before(self) -> Mapping[str, int]:
        """As they were at the begin of the look."""
        return dict(self.document.get("counters_before", {}))

    @property
    def loader_share(self) -> float:
        """The share of its stacks that are in a loader of data."""
        return self.is_in(*LOADER)

    def sleeps_in(self, *words: str) -> float:
        """The share of the looks in which its main thread slept in the kernel in one of `words`, or in state D."""
        states = self.document.get("states", [])
        found = [
            state for state, place in states if state == "D" or any(word in place for word in words)
        ]
        return len(found) / len(states) if states else 0.0

    def frame_with(self, *words: str) -> str:
        """The innermost frame that holds one of `words`."""
        for stack in self.stacks:
            for file, line, function in stack:
                if any(word in f"{file} {function}" for word in words):
                    return f"{file}:{line}, in {function}"
        return ""

    def line_with(self, *words: str) -> str:
        """Where the user's own code is while one of `words` is in its stack; that frame itself if it has none there."""
        for stack in self.stacks:
            if _holds(stack, words):
                return users_line(stack)
        return ""

    def rate(self, name: str) -> float | None:
        """How fast a number of the process grew while it was looked at, per second; None: it is not known."""
        before, now = self.document.get("before", {}), self.document.get("now", {})
        if name not in before or name not in now or now["time_ns"] <= before["time_ns"]:
            return None
        span_s: float = (now["time_ns"] - before["time_ns"]) / 1e9
        return float(now[name] - before[name]) / span_s

    @property
    def processor_share(self) -> float:
        """Cores that it uses."""
        return ((self.rate("user_ms") or 0.0) + (self.rate("system_ms") or 0.0)) / 1e3

    @property
    def delay_share(self) -> float:
        """How much of the time its threads were ready to run and did not, added up."""
        return (self.rate("run_delay_ms") or 0.0) / 1e3

    @property
    def starved(self) -> float:
        """Of the time in which its threads wanted a core, the share in which they had none."""
        wanted = self.processor_share + self.delay_share
        return self.delay_share / wanted if wanted else 0.0

    @property
    def trains_since_ns(self) -> int:
        """When its first step ended: before that programs load modules and data; 0: it counts no steps."""
        if not self.steps:
            return 0
        return int(self.counters["last_step_ns"]) - int(self.counters["step_ns"])

    @property
    def paging(self) -> float:
        """Major page faults in a second for which it has a core: one that waits for a core has fewer."""
        return (self.rate("major_faults") or 0.0) / max(0.2, 1.0 - self.starved)

    @property
    def idle_s(self) -> float:
        """Since an operation has ended, or since the first one began; infinite before the first one."""
        now_ns = int(self.process.get("time_ns", 0))
        last_ns = int(self.counters.get("last_progress_ns", 0))
        if not last_ns:
            last_ns = min((int(each["submitted_ns"]) for each in self.open), default=0)
        if not now_ns:
            return 0.0
        return (now_ns - last_ns) / 1e9 if last_ns else math.inf

    @property
    def has_begun(self) -> bool:
        return bool(self.counters.get("submitted", 0))

    @property
    def links(self) -> Sequence[Mapping[str, Any]]:
        """Its TCP connections to other hosts, as the kernel sees them; links_before: at the begin of the look."""
        return list(self.document.get("links", []))

    @property
    def links_before(self) -> Sequence[Mapping[str, Any]]:
        return list(self.document.get("links_before", []))

    @property
    def samples(self) -> Sequence[Mapping[str, int]]:
        return list(self.document.get("samples", []))

    @property
    def marks(self) -> Sequence[Mapping[str, Any]]:
        return list(self.document.get("marks", []))

    @cached_property
    def step_s(self) -> list[float]:
        return [mark["duration_ns"] / 1e9 for mark in self.marks if mark["text"] == "step"]


def _holds(stack: Sequence[Frame], words: Sequence[str]) -> bool:
    return any(word in f"{file} {function}" for file, _, function in stack for word in words)


class Picture:
    """All ranks of a look.  `look`: {"hosts": …, "ranks": …, "ended": …}, as the launcher answers."""

    def __init__(self, look: Mapping[str, Any]) -> None:
        ended = look.get("ended", {})
        self.hosts: Mapping[str, Mapping[str, Any]] = look.get("hosts", {})
        numbers = sorted({int(each) for each in (*look.get("ranks", {}), *ended)})
        self.ranks = {
            rank: RankView(rank, look.get("ranks", {}).get(str(rank), {}), ended.get(str(rank), {}))
            for rank in numbers
        }
        sizes = [int(view.header.get("size", 0)) for view in self.ranks.values()]
        self.size = max([*sizes, int(look.get("size", 0)), len(self.ranks)], default=0)
        self.is_after = bool(look.get("is_after")) or not any(
            view.is_alive for view in self.ranks.values()
        )

    @cached_property
    def phase(self) -> str:
        """ "starting", "ended", "hung", "running" (steps continue) or "idle" (no operation is open, none ends)."""
        if self.is_after:
            return "ended"
        known = [view for view in self.ranks.values() if view.document]
        if len(known) < self.size or not any(view.has_begun for view in known):
            return "starting"
        idle_s = min((view.idle_s for view in known if view.is_alive), default=0.0)
        if idle_s < max(_HANGS_AFTER_S, 3 * self.step_s):
            return "running"
        return "hung" if any(view.open for view in known) else "idle"

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step, the median of all ranks; 0: nobody counts steps."""
        found = [each for view in self.ranks.values() for each in view.step_s[-50:]]
        return statistics.median(found) if found else 0.0

    @cached_property
    def communication_share(self) -> float:
        """For how much of the time operations of a rank ran, the median of all ranks."""
        shares = []
        for view in self.ranks.values():
            done = [
                each
                for each in view.operations[-200:]
                if each["started_ns"] and each["finished_ns"]
            ]
            span = done[-1]["finished_ns"] - done[0]["submitted_ns"] if done else 0
            if span > 0:
                shares.append(sum(each["finished_ns"] - each["started_ns"] for each in done) / span)
        return statistics.median(shares) if shares else 0.0

    @cached_property
    def oldest(self) -> tuple[Key, list[int], list[int]] | None:
        """What ranks have waited for longest: the operation, who waits, and who has not submitted it."""
        waiting: dict[Key, dict[int, int]] = defaultdict(dict)
        for rank, view in self.ranks.items():
            for each in view.waits_for:
                if each["kind"] not in _PAIRS:
                    waiting[each["kind"], each["name"], each["group"]][rank] = each["submitted_ns"]
        missing = {
            key: sorted(self.members_of(key[2]) - set(by_rank)) for key, by_rank in waiting.items()
        }
        found = [
            (min(self.aligned(rank, at) for rank, at in by_rank.items()), key)
            for key, by_rank in waiting.items()
            if missing[key]
        ]
        if not found:
            return None
        key = min(found)[1]
        return key, sorted(waiting[key]), missing[key]

    def members_of(self, group: int) -> set[int]:
        """The ranks of a group, as far as records tell: those that have used it."""
        if group == 0:
            return {rank for rank, view in self.ranks.items() if view.document}
        return {
            rank
            for rank, view in self.ranks.items()
            if any(operation["group"] == group for operation in view.operations)
        }

    @cached_property
    def late(self) -> list[int]:
        """Who is last: in a job that hangs the ranks that others wait for; in a slow one who comes last often."""
        if self.phase in ("hung", "ended"):
            return self.oldest[2] if self.oldest else []
        if self.phase != "running":
            return []
        worst = self.late_share
        if not worst:
            return []
        top = max(worst.values())
        return (
            [rank for rank, share in worst.items() if share >= max(0.1, 0.7 * top)]
            if top >= 0.1
            else []
        )

    @property
    def waiting(self) -> list[int]:
        """Ranks that wait for others."""
        return self.oldest[1] if self.oldest else []

    @cached_property
    def late_share(self) -> dict[int, float]:
        """By rank: for how much of the time the other ranks waited for this one alone."""
        lateness, first, last = Counter[int](), 0.0, 0.0
        for by_rank in self._rounds[-2000:]:
            if len(by_rank) < 2:
                continue
            order = sorted(by_rank.items(), key=lambda item: item[1])
            (_, second), (rank, at) = order[-2], order[-1]
            if len(order) == 2:
                second = order[0][1]
            lateness[rank] += int(max(0.0, at - second) * 1e9)
            first = min(first or at, order[0][1])
            last = max(last, at)
        span = last - first
        return {rank: each / 1e9 / span for rank, each in lateness.items()} if span > 0 else {}

    @cached_property
    def _rounds(self) -> list[dict[int, float]]:
        """Of each agreed operation when each rank submitted it, in seconds of rank 0's host's clock."""
        found: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        for rank, view in self.ranks.items():
            for operation in view.operations:
                if operation["round"] and operation["kind"] not in _PAIRS:
                    found[operation["epoch"], operation["round"]][rank] = self.aligned(
                        rank, operation["submitted_ns"]
                    )
        return [found[key] for key in sorted(found)]

    def aligned(self, rank: int, at_ns: int) -> float:
        """Seconds of the clock of the first rank's host: ranks learn of an agreement at nearly the same moment."""
        return (at_ns - self._offsets.get(rank, 0)) / 1e9

    @cached_property
    def _offsets(self) -> dict[int, int]:
        first = next((view for view in self.ranks.values() if view.operations), None)
        if first is None:
            return {}
        agreed = {
            operation["round"]: operation["agreed_ns"]
            for operation in first.operations
            if operation["round"]
        }
        found = {}
        for rank, view in self.ranks.items():
            if view.header.get("boot") == first.header.get("boot"):
                continue  # One clock.
            gaps = [
                operation["agreed_ns"] - agreed[operation["round"]]
                for operation in view.operations
                if operation["round"] in agreed
            ]
            found[rank] = int(statistics.median(gaps)) if gaps else 0
        return found

    def others(self, ranks: Sequence[int]) -> list[RankView]:
        """The views of all ranks but these."""
        return [view for rank, view in self.ranks.items() if rank not in ranks]

    def median_of(self, ranks: Sequence[int], name: str) -> float:
        """Of a property of views, over all ranks but these; 0 without any."""
        found = [float(getattr(view, name)) for view in self.others(ranks)]
        return statistics.median(found) if found else 0.0

    def by_host(self) -> dict[str, list[RankView]]:
        """The ranks of each host."""
        found: dict[str, list[RankView]] = defaultdict(list)
        for view in self.ranks.values():
            found[view.host].append(view)
        return dict(found)
