"""The autotuner: finds partition, fusion and credit sizes and lanes while the job trains.

It lives on rank 0, whose proposals the negotiation brings to all ranks.  At every step boundary it
looks at the clock.  Some steps with one combination are a window; a Gaussian process over the windows
says which combination to try next; at the end the best and the one that the job started with run in
turns, and the start stays unless it loses.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rabit._bayes import Minimizer
from rabit._knobs import Space, Values, describe
from rabit._tuning_records import Cache, Key, Log, Window

__all__ = ["Plan", "Subject", "Tuner", "Work"]

# Steps after a change that do not count: what was cut before it is still on its way.
_SETTLE_STEPS = 2
# A combination that is so much slower than the best one is given up after a few steps.
_HOPELESS, _HOPELESS_STEPS = 2.0, 3
# Short steps are measured for longer, up to so many times the steps of a window.
_WINDOW_STRETCH = 20
# The start is measured again after so many others, because the machine changes as well.
_START_AGAIN = 6
# The search ends when it expects to gain less than this share of a step.
_WORTHWHILE = 0.003
# The guard: so many pairs of windows, of which the challenger must win most, and by this much.
_PAIRS, _PAIRS_REMEMBERED = 5, 3
_MARGIN = 0.99


@dataclass(frozen=True)
class Work:
    """What a job has done so far: reduced bytes, and hashes of all tensors added up (64 bits).

    values: in force now; the engine may have chosen them by itself.
    """

    total_bytes: int
    total_hash: int
    values: Values


class Subject(Protocol):
    """What is tuned."""

    def now(self) -> float: ...
    def propose(self, values: Values) -> None: ...
    def work(self) -> Work: ...


@dataclass(frozen=True)
class Plan:
    """start: what the job began with.  window_s: a window lasts at least so long (but see above)."""

    start: Values
    knobs: tuple[str, ...]
    lanes_max: int
    topology: str
    backend: str
    warmup: int = 3
    samples: int = 20
    steps: int = 10
    window_s: float = 0.2


class Tuner:
    """Call end_step at every step boundary; it waits for nothing but its own arithmetic."""

    def __init__(
        self,
        subject: Subject,
        plan: Plan,
        cache: Cache,
        log: Log | None,
        say: Callable[[str], None],
    ) -> None:
        self.plan = plan
        self.is_done = False
        self.report: dict[str, Any] = {"phase": "warmup", "values": dict(plan.start)}
        self._subject = subject
        self._cache = cache
        self._log = log
        self._say = say
        self._began = subject.now()
        self._last: float | None = None
        self._count = 0
        self._values = dict(plan.start)  # what is in force
        self._start = dict(plan.start)  # what would be without tuning
        self._key: Key | None = None
        self._step_bytes = 0
        self._best_s = math.inf
        self._script = self._tune()
        next(self._script)

    def end_step(self) -> None:
        """A training step has ended here."""
        if self.is_done:
            return
        self._count += 1
        now = self._subject.now()
        last, self._last = self._last, now
        if last is None:
            return
        try:
            self._script.send(now - last)
        except StopIteration:
            self.is_done = True
        self._last = self._subject.now()  # without the arithmetic

    # --- the script: every yield is a step, and gives its duration --------------------------------

    def _tune(self) -> Generator[None, float, None]:
        for _ in range(self.plan.warmup - 1):
            yield from self._window("warmup", self._start)
        self._key = yield from self._look()
        earlier = self._earlier()
        start = self._start
        remembered = self._remembered(earlier)
        if remembered == start:
            return self._finish(start, "as remembered")
        if remembered is not None:
            is_better = yield from self._guard(remembered, _PAIRS_REMEMBERED)
            if is_better:
                return self._finish(remembered, "as remembered")
        space = Space.around(start, self.plan.knobs, self._step_bytes, self.plan.lanes_max)
        if not space.names:
            return self._finish(start, "there is nothing to choose")
        best = yield from self._explore(space, earlier)
        is_better = False
        if best != start:
            is_better = yield from self._guard(best, _PAIRS)
        self._finish(best if is_better else start, "")

    def _look(self) -> Generator[None, float, Key]:
        """A window of the start that also finds out what a step reduces."""
        before, hashes, sizes = self._subject.work(), Counter[int](), []
        durations: list[float] = []
        for _ in range(max(self.plan.steps, 3)):
            durations.append((yield))
            after = self._subject.work()
            hashes[(after.total_hash - before.total_hash) % (1 << 64)] += 1
            sizes.append(after.total_bytes - before.total_bytes)
            before = after
        self._step_bytes = max(int(statistics.median(sizes)), 1)
        self._start = self._values = dict(before.values)
        self._note("warmup", self._start, durations)
        usual = hashes.most_common(1)[0][0]
        start = describe(self.plan.start)
        return Key(f"{usual:016x}", self.plan.topology, self.plan.backend, start)

    def _explore(self, space: Space, earlier: list[Window]) -> Generator[None, float, Values]:
        """The best of what has been measured, here or as the log says."""
        search = Minimizer(len(space.names), seed=0, candidates=space.candidates(), initial=4)
        used = 0
        for each in earlier:
            point = space.point(each.values)
            if each.phase == "explore" and point is not None:
                search.tell(point, each.step_s)
                used += 1
        start, yet = self._point(space, self._start), 0
        for yet in range(self.plan.samples - used):
            point = start if yet % _START_AGAIN == 0 else search.ask()
            if point is None or (yet > 4 and search.gain < _WORTHWHILE * self._best_s):
                break
            seconds = yield from self._window("explore", space.values(point))
            search.tell(point, seconds)
            self.report["samples"] = yet + 1 + used
        if not search.values:
            search.tell(start, (yield from self._window("explore", self._start)))
        return space.values(search.best()[0])

    def _guard(self, challenger: Values, pairs: int) -> Generator[None, float, bool]:
        """True if `challenger` is faster than the start, in windows that take turns."""
        ratios: list[float] = []
        times: dict[bool, list[float]] = {True: [], False: []}
        self._best_s = math.inf  # neither is given up
        for pair in range(pairs):
            for is_challenger in (pair % 2 == 0, pair % 2 == 1):
                values = challenger if is_challenger else self._start
                seconds = yield from self._window("guard", values)
                times[is_challenger].append(seconds)
            ratios.append(times[True][-1] / times[False][-1])
            losses = sum(each >= 1.0 for each in ratios)
            if losses > pairs // 4:
                break
        self.report["start_step_ms"] = 1e3 * statistics.median(times[False])
        self.report["tuned_step_ms"] = 1e3 * statistics.median(times[True])
        return len(ratios) == pairs and statistics.median(ratios) < _MARGIN and losses <= pairs // 4

    def _window(self, phase: str, values: Values) -> Generator[None, float, float]:
        """Seconds of a step with `values`."""
        self.report["phase"] = phase
        if values != self._values:
            self._apply(values)
            for _ in range(_SETTLE_STEPS):
                yield
        durations: list[float] = []
        while len(durations) < self.plan.steps * _WINDOW_STRETCH:
            durations.append((yield))
            if len(durations) >= self.plan.steps and sum(durations) >= self.plan.window_s:
                break
            is_hopeless = typical(durations) > _HOPELESS * self._best_s
            if len(durations) >= _HOPELESS_STEPS and is_hopeless:
                break
        seconds = self._note(phase, values, durations)
        if phase == "explore":
            self._best_s = min(self._best_s, seconds)
        return seconds

    # --- the rest ---------------------------------------------------------------------------------

    def _apply(self, values: Values) -> None:
        self._subject.propose(values)
        self._values = dict(values)
        self.report["values"] = dict(values)

    def _note(self, phase: str, values: Values, durations: list[float]) -> float:
        seconds = typical(durations)
        if self._log is not None:
            key = self._key.digest if self._key is not None else ""
            self._log.write(
                self._subject.now() - self._began,
                Window(phase, key, values, len(durations), seconds, self._step_bytes),
            )
        return seconds

    def _earlier(self) -> list[Window]:
        """The rows of the log that hold for this job."""
        assert self._key is not None
        rows: Iterator[Window] = iter(self._log.earlier if self._log is not None else ())
        return [each for each in rows if each.key == self._key.digest]

    def _remembered(self, earlier: list[Window]) -> Values | None:
        """What an earlier job ended with, if it can still be had."""
        assert self._key is not None
        ends = [(each.values, each.phase == "kept") for each in earlier]
        ends = ends[-1:] if earlier and earlier[-1].phase in ("kept", "chosen") else []
        document = self._cache.load(self._key)
        if document is not None:
            ends.append((document["values"], document.get("is_start") is True))
        if not ends:
            return None
        values, is_start = ends[-1]
        if is_start:
            return self._start
        found = {**self._start, **{name: values[name] for name in self.plan.knobs}}
        return found if found["lanes"] <= self.plan.lanes_max else None

    @staticmethod
    def _point(space: Space, values: Values) -> Any:
        point = space.point(values)
        assert point is not None, "the start lies in its own space"
        return point

    def _finish(self, chosen: Values, why: str) -> None:
        """Puts `chosen` in force for good, remembers it, and says so once."""
        assert self._key is not None
        if chosen != self._values:
            self._apply(chosen)
        is_start = chosen == self._start
        before, after = self.report.get("start_step_ms"), self.report.get("tuned_step_ms")
        self.report.update(phase="done", is_start=is_start, steps=self._count, key=self._key.digest)
        seconds = (before if is_start else after) or 0.0
        if self._log is not None:
            phase = "kept" if is_start else "chosen"
            window = Window(phase, self._key.digest, chosen, 0, seconds / 1e3, self._step_bytes)
            self._log.write(self._subject.now() - self._began, window)
        times = {"start_step_ms": before, "tuned_step_ms": after}
        path = self._cache.save(self._key, chosen, is_start=is_start, steps=self._count, **times)
        verdict = f"stays with {describe(chosen)}" if is_start else f"chose {describe(chosen)}"
        if not is_start and before is not None and after is not None:
            change = 100.0 * (after / before - 1.0)
            verdict += f": a step takes {after:.3g} ms instead of {before:.3g} ms ({change:+.0f} %)"
        self._say(
            f"autotune {verdict}"
            + (f", {why}" if why else "")
            + f"; after {self._count} steps"
            + (f"; remembered in {path}" if path is not None and not why else "")
        )


def typical(durations: list[float]) -> float:
    """The mean of the middle half: neither a pause nor the turns of two optimizers mislead it."""
    ordered = np.sort(np.array(durations))
    cut = max(len(ordered) // 4, 1) if len(ordered) > 2 else 0
    return float(ordered[cut : len(ordered) - cut].mean())
