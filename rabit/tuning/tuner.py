"""The autotuner: finds sizes, credit, lanes and overlap while the job trains.

It lives on rank 0, whose proposals the negotiation brings to all ranks.  At every step boundary it
looks at the clock.  Some steps with one combination are a window; a Gaussian process over the windows
says which combination to try next; at the end the best one and the job without tuning run in turns,
and the job continues without tuning unless that is slower.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rabit.tuning.bayes import Array, Minimizer
from rabit.tuning.knobs import Values, describe
from rabit.tuning.records import Cache, Key, Log, Window
from rabit.tuning.space import Space

__all__ = ["Plan", "Subject", "Tuner", "Work"]

# What runs without tuning: the engine and the optimizer choose as ever.
_OFF: Values | None = None

# Steps after a change that do not count: what was cut before it is still on its way.  Another overlap
# is in force one step later, and its first step waits like a barrier.
_SETTLE_STEPS, _SETTLE_STEPS_OVERLAP = 2, 5
# A combination that is so much slower than the best one is given up after a few steps.
_HOPELESS, _HOPELESS_STEPS = 2.0, 3
# Short steps are measured for longer, up to this many times the steps of a window.
_WINDOW_STRETCH = 20
# The job without tuning is measured again after this many others, because the machine changes as well.
_OFF_AGAIN = 6
# The search ends when it expects to gain less than this share of a step; not before it has measured
# twice as many points as a plane through them would need.
_WORTHWHILE = 0.003
# The guard is a sign test over pairs of windows: of this many pairs the challenger may lose this many, and
# has lost where it does not gain 1 %.  If half of all pairs were lost in truth, each line would pass
# with a probability of 3 to 4 %, and one of the three with 6 %.
_PASSES = {5: 0, 8: 1, 11: 2}
_MARGIN = 0.99


@dataclass(frozen=True)
class Work:
    """What a job has done so far: reduced bytes, and hashes of all tensors added up (64 bits).

    values: in force now, chosen by the tuner or not.
    """

    total_bytes: int
    total_hash: int
    values: Values


class Subject(Protocol):
    """What is tuned."""

    def now(self) -> float: ...

    def is_ready(self) -> bool:
        """False as long as the job still finds out by itself how it works best."""

    def overlaps(self) -> tuple[str, ...]:
        """The overlaps that may be proposed; empty if that is not the tuner's to choose."""

    def propose(self, values: Values) -> None: ...

    def reset(self) -> None:
        """Lets the job work as it would without any proposal."""

    def work(self) -> Work: ...

    def end(self) -> None:
        """Nothing more will be proposed."""


@dataclass(frozen=True)
class Plan:
    """start: what the job is set to.  window_s: a window lasts at least so long (but see above)."""

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
        self._values = _OFF  # what is proposed
        self._off = dict(plan.start)  # what is in force without a proposal
        self._overlaps: tuple[str, ...] = ()
        self._key: Key | None = None
        self._step_bytes = 0
        self._best_s = math.inf
        self._script = self._tune()

    def end_step(self) -> None:
        """A training step has ended here."""
        if self.is_done:
            return
        self._count += 1
        if self._overlaps and not self._subject.overlaps():
            self._give_up()
            return
        now = self._subject.now()
        try:
            if self._last is None:
                next(self._script)
            else:
                self._script.send(now - self._last)
        except StopIteration:
            self.is_done = True
        self._last = self._subject.now()  # without the arithmetic

    # --- the script: every yield is a step, and gives its duration --------------------------------

    def _tune(self) -> Generator[None, float, None]:
        while not self._subject.is_ready():
            yield
        self._overlaps = self._subject.overlaps()
        for _ in range(self.plan.warmup - 1):
            yield from self._window("warmup", _OFF)
        self._key = yield from self._look()
        remembered = self._remembered()
        if remembered == {}:
            return self._finish(_OFF, "as remembered")
        if remembered is not None and (yield from self._guard(remembered)):
            return self._finish(remembered, "as remembered")
        best = yield from self._explore()
        if best is None or not (yield from self._guard(best)):
            return self._finish(_OFF, "")
        return self._finish(best, "")

    def _look(self) -> Generator[None, float, Key]:
        """A window without tuning that also finds out what a step reduces."""
        before, hashes, sizes = self._subject.work(), Counter[int](), []
        durations: list[float] = []
        for _ in range(max(self.plan.steps, 3)):
            durations.append((yield))
            after = self._subject.work()
            hashes[(after.total_hash - before.total_hash) % (1 << 64)] += 1
            sizes.append(after.total_bytes - before.total_bytes)
            before = after
        self._step_bytes = max(int(statistics.median(sizes)), 1)
        self._off = dict(before.values)
        self._note("warmup", _OFF, durations)
        usual = hashes.most_common(1)[0][0]
        knobs = ", ".join((*self.plan.knobs, *self._overlaps))
        start = describe(self.plan.start)
        return Key(f"{usual:016x}", self.plan.topology, self.plan.backend, start, knobs)

    def _explore(self) -> Generator[None, float, Values | None]:
        """The best of what has been measured, here or as the log says."""
        earlier = self._unfinished()
        # What was in force without tuning then is the start of that search and of its rest.
        began = next((sample for sample in earlier if sample.phase == "explore-off"), None)
        start, step_bytes = self._off, self._step_bytes
        if began is not None:
            start, step_bytes = began.values, began.step_bytes
        plan = self.plan
        space = Space.around(start, plan.knobs, step_bytes, plan.lanes_max, self._overlaps)
        if not space.names:
            return _OFF
        off = _place(space, start)
        search = Minimizer(
            len(space.names),
            seed=0,
            candidates=space.candidates(),
            categorical=space.categorical,
            initial=4,
        )
        for each in earlier:
            point = off if each.phase == "explore-off" else space.point(each.values)
            if each.phase.startswith("explore") and point is not None:
                search.tell(point, each.step_s)
                self._best_s = min(self._best_s, each.step_s)
        for count in range(len(search.values), plan.samples):
            is_off = count % _OFF_AGAIN == 0
            point = off if is_off else search.ask()
            is_enough = count >= 2 * (len(space.names) + 1)
            if point is None or (is_enough and search.gain < _WORTHWHILE * self._best_s):
                break
            values = _OFF if is_off else space.values(point)
            search.tell(point, (yield from self._window("explore", values)))
            self.report["samples"] = count + 1
        best, _ = search.best()
        return _OFF if np.array_equal(best, off) else space.values(best)

    def _guard(self, challenger: Values) -> Generator[None, float, bool]:
        """True if `challenger` is faster than no tuning, in windows that take turns."""
        times: dict[bool, list[float]] = {True: [], False: []}
        lost = 0
        self._best_s = math.inf  # neither is given up
        for pair in range(1, max(_PASSES) + 1):
            # Both orders, so that a drift of the machine favours neither.
            for is_challenger in (pair % 2 == 0, pair % 2 == 1):
                values = challenger if is_challenger else _OFF
                times[is_challenger].append((yield from self._window("guard", values)))
            lost += times[True][-1] > _MARGIN * times[False][-1]
            self.report["pairs"], self.report["pairs_lost"] = pair, lost
            self.report["off_step_ms"] = 1e3 * statistics.median(times[False])
            self.report["tuned_step_ms"] = 1e3 * statistics.median(times[True])
            if lost <= _PASSES.get(pair, -1):
                return True
            if lost > max(_PASSES.values()):
                break
        return False

    def _window(self, phase: str, values: Values | None) -> Generator[None, float, float]:
        """Seconds of a step with `values`."""
        self.report["phase"] = phase
        for _ in range(self._apply(values)):
            yield
        durations: list[float] = []
        while len(durations) < self.plan.steps * _WINDOW_STRETCH:
            durations.append((yield))
            if len(durations) >= self.plan.steps and sum(durations) >= self.plan.window_s:
                break
            is_slow = typical(durations) > _HOPELESS * self._best_s
            if values is not _OFF and len(durations) >= _HOPELESS_STEPS and is_slow:
                break
        seconds = self._note(phase, values, durations)
        if phase == "explore":
            self._best_s = min(self._best_s, seconds)
        return seconds

    # --- the rest ---------------------------------------------------------------------------------

    def _apply(self, values: Values | None) -> int:
        """Puts `values` in force; returns how many steps will not count."""
        if values == self._values:
            return 0
        before, after = self._values or self._off, values or self._off
        self._values = values
        self.report["values"] = dict(after)
        if values is None:
            self._subject.reset()
        else:
            self._subject.propose(values)
        return _SETTLE_STEPS if before["overlap"] == after["overlap"] else _SETTLE_STEPS_OVERLAP

    def _note(self, phase: str, values: Values | None, durations: list[float]) -> float:
        """Writes a window down; returns the seconds of a step in it."""
        seconds = round(typical(durations), 9) if durations else 0.0
        if self._log is not None:
            key = self._key.digest if self._key is not None else ""
            shown = phase if values is not None or phase == "off" else f"{phase}-off"
            window = Window(
                shown, key, values or self._off, len(durations), seconds, self._step_bytes
            )
            self._log.write(self._subject.now() - self._began, window)
        return seconds

    def _earlier(self) -> list[Window]:
        """The rows of the log that hold for this job."""
        assert self._key is not None
        rows = self._log.earlier if self._log is not None else []
        return [row for row in rows if row.key == self._key.digest]

    def _unfinished(self) -> list[Window]:
        """The rows of a job that was cut off, if the last one was."""
        rows: list[Window] = []
        for sample in self._earlier():
            rows = [] if sample.phase in ("chosen", "off") else [*rows, sample]
        return rows

    def _remembered(self) -> Values | None:
        """What an earlier job ended with; {}: with nothing.  None if there was none."""
        assert self._key is not None
        found = self._cache.load(self._key)
        rows = self._earlier()
        if found is None and rows and rows[-1].phase in ("chosen", "off"):
            found = rows[-1].values if rows[-1].phase == "chosen" else {}
        return found

    def _give_up(self) -> None:
        self._apply(_OFF)
        self._subject.end()
        self.is_done = True
        self.report.update(phase="given up", is_off=True, steps=self._count)
        self._say(
            f"autotune ends after {self._count} steps and changes nothing: the overlap that it was "
            "choosing has been set by hand"
        )

    def _finish(self, chosen: Values | None, why: str) -> None:
        """Puts `chosen` in force for good, remembers it, and says so once."""
        assert self._key is not None
        self._apply(chosen)
        self._subject.end()
        is_off = chosen is None
        self.report.update(phase="done", is_off=is_off, steps=self._count, key=self._key.digest)
        self._note("off" if is_off else "chosen", chosen, [])
        off_ms, tuned_ms = self.report.get("off_step_ms"), self.report.get("tuned_step_ms")
        times = {"off_step_ms": off_ms, "tuned_step_ms": tuned_ms}
        path = self._cache.save(self._key, chosen or {}, steps=self._count, **times)
        if chosen is None:
            text = f"autotune changes nothing: {describe(self._off)} is not beaten"
        else:
            assert off_ms is not None and tuned_ms is not None
            change = 100.0 * (tuned_ms / off_ms - 1.0)
            text = f"autotune chose {describe(chosen)}: a step takes {tuned_ms:.3g} ms instead of "
            text += f"{off_ms:.3g} ms ({change:+.0f} %)"
        self._say(
            text
            + (f", {why}" if why else "")
            + f"; after {self._count} steps"
            + (f"; remembered in {path}" if path is not None and not why else "")
        )


def _place(space: Space, values: Values) -> Array:
    point = space.point(values)
    assert point is not None, "the start lies in its own space"
    return point


def typical(durations: list[float]) -> float:
    """The mean of the middle half: neither a pause nor the turns of two optimizers mislead it."""
    ordered = np.sort(np.array(durations))
    cut = max(len(ordered) // 4, 1) if len(ordered) > 2 else 0
    return float(ordered[cut : len(ordered) - cut].mean())
